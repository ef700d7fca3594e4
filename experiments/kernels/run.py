"""What runs on a GPU one after another, and how many cycles does a call take on a TPU?

Counted in compiled programs, on any machine: XLA compiles for a GPU that is not there if jax has
its CUDA plugin, which needs no driver:

    pip install --no-deps jax-cuda13-plugin==<version of jax> jax-cuda13-pjrt==<the same>

With ``--target "TPU v5e"`` it is compiled for a TPU, whose compiler estimates the cycles of what it
makes. That takes the library of TPUs:

    pip install --no-deps libtpu
    JAX_PLATFORMS=cpu python -m experiments kernels --target "TPU v5e"

No program is timed. Chains are solved on the device at hand, for their Newton iterations. Kernels
of a narrow chain compute next to nothing, so the time of a program is that of its nodes. A loop
that is one kernel is one node, and takes as long as all of its steps.

Two models say how long a call takes: XLA's, which writes its estimate of each kernel into the
program, and `depth`'s. Where they differ by more than 2, one of them is wrong.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax

import deeppcr
import depth
from deeppcr.lower import expecting
from deeppcr.lower.variants import compiled_for
from experiments.bench import command
from experiments.bench.columns import BENCH, LABELS
from experiments.bench.costs import analyze, further, is_fallback
from experiments.bench.engine import AUTO, Case, Variant
from experiments.bench.plots import Figures, dots, styled
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.headline import HEADLINES, TITLE, case
from experiments.kernels.targets import NAMES, Target, Unavailable, target

TAKES = "5 min"
QUICK = ("MLP",)
WORDS = (
    *QUICK,
    "GRU, 8",
    "GRU of 1",
    "LSTM, 128",
    "residual",
    "latent",
)  # of programs of each kind
COLUMNS = {
    "target": "the device that programs are compiled for",
    **LABELS,
    "program": BENCH["program"],
    "iterations": "Newton iterations",
    "nodes": "kernels, library calls and copies, one after another on the device, in one call",
    "fewer nodes": "nodes of lax.scan / nodes of this program",
    "cycles": "of a call on a TPU, as the compiler estimates them",
    "fewer cycles": "cycles of lax.scan / cycles of this program",
    "a trip": "the same in a trip of the longest loop",
    "XLA ms": "time of a call, as XLA estimates: its kernels and launches, or cycles of a TPU",
    "depth ms": "time of the same program by depth's model, without the latency of the call",
    "depth / XLA": "the second over the first",
    "kernels": "kernels that depth expects the compiler to make, however often each runs",
    "compile s": "seconds to compile for the target, on this machine",
}


def makers(quick: bool) -> list[Callable[[], Case]]:
    """Functions that make the cases: those of `headline` that start with these words."""
    titles = [title for title in HEADLINES if title.startswith(QUICK if quick else WORDS)]
    return [partial(case, title) for title in titles]


def rows(case: Case, target: Target) -> Iterator[Row]:
    """A row for each program of a case."""
    counts, first = target.counts, 0
    for name, given in {**case.baselines, **case.variants}.items():
        variant = given if isinstance(given, Variant) else Variant(given)
        # "auto" may be another program on the target, with other iterations.
        if name == "auto":
            continue
        iterations = _iterations(variant, case.arguments[0])
        PROGRESS.say(f"compiling {name}")
        before, start = lowered(variant, case.arguments[0], target), time.monotonic()
        compiled, compiling = target.compile(before), time.monotonic() - start
        with target.chosen():
            total = compiled.total(partial(_trips, iterations))
        first = first or total
        row = {**case.labels, "program": name, "sequential": name in case.baselines}
        row |= {} if iterations is None else {"iterations": iterations}
        row |= {counts: total, f"fewer {counts}": first / total}
        row |= {"a trip": compiled.trip(lambda loop: not is_fallback(loop))}
        cost = predicted(variant, case.arguments[0], target, iterations)
        row |= estimates(
            target.seconds(compiled, partial(_trips, iterations)),
            cost.seconds(depth.devices[target.name]),
        )
        yield row | {"kernels": cost.program.compiled, "compile s": compiling}


def lowered(variant: Variant, arguments: Any, target: Target) -> jax.stages.Lowered:
    """A program before it is compiled."""
    with target.chosen():
        return target.lower(variant.run, *_given(variant, arguments))


def predicted(
    variant: Variant, arguments: Any, target: Target, iterations: int | None
) -> depth.Cost:
    """The cost of a call on a target, where no fallback runs."""
    with target.chosen(), expecting(iterations or 1):
        given = _given(variant, arguments)
        return analyze(lambda *x: variant.run(*x), *given, trips=iterations, rest=0)


def estimates(xla: float, model: float) -> Row:
    """The cells of both estimates, and their ratio, where XLA has one."""
    row: Row = {"XLA ms": 1e3 * xla, "depth ms": 1e3 * model, "depth / XLA": model / xla}
    return row if math.isfinite(xla) else {"depth ms": 1e3 * model}


def _given(variant: Variant, arguments: Any) -> Any:
    return jax.eval_shape(variant.prepare, *arguments) if variant.prepare else arguments


def _iterations(variant: Variant, arguments: tuple[Any, ...]) -> int | None:
    """Newton iterations of a solve; None for a program without."""
    if variant.solve is None:
        return None
    solution = variant.solve(*arguments)
    if int(solution.result) != deeppcr.Result.CONVERGED:
        raise RuntimeError(f"expected a chain that converges, got {solution.result}.")
    return int(solution.stats.iterations)


def _trips(iterations: int | None, name: str) -> int:
    """Trips of a loop whose end depends on data, by its name; a fallback has none."""
    if is_fallback(name):
        return 0
    if iterations is None:
        raise ValueError(f"expected a loop of known length or a solve, got the loop {name}.")
    return further(iterations)


def named(row: Row) -> str:
    """A case in a few words: "MLP, forward pass", or of older rows "tanh, L = 1,024, w = 8"."""
    if TITLE in row:
        return str(row[TITLE])
    kind = row.get("kind") or row.get("data") or ""
    return f"{kind}, L = {row['L']:,}, w = {row['w']}, {row['direction']}"


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """A line for each case: nodes on a GPU, cycles on a TPU, by every program."""
    said = {
        "nodes": "Nodes on the device: kernels, library calls and copies",
        "cycles": "Cycles of a call as the compiler estimates them",
    }
    found: Figures = {}
    for key, title in said.items():
        mine = [row | {"baseline": row["sequential"]} for row in rows if key in row]
        if mine:
            what = f"{title} ({mine[0].get('target', 'H200')})"
            found[key] = dots(what, mine, key, f"{key}; left is better", named, at=None)
    return found


def samples() -> list[Case]:
    """See `experiments.bench.fresh`. What "auto" takes here may be another program on a target."""
    one = case("MLP, forward pass", 20)
    named = [each for each in one.variants.items() if each[0] != AUTO]
    return [dataclasses.replace(one, variants=dict(map(_traced, named)))]


def _traced(named: tuple[str, Any]) -> tuple[str, Variant]:
    """The program that a GPU would run."""
    name, given = named
    variant = given if isinstance(given, Variant) else Variant(given)

    def run(*arguments: Any) -> Any:
        with compiled_for("cuda"):
            return variant.run(*arguments)

    return name, dataclasses.replace(variant, run=run)


def main(argv: list[str]) -> None:
    """Compile the programs, and count what they launch."""
    arguments = command.parser("kernels", __doc__)
    what = "the device to compile for (%(default)s)"
    arguments.add_argument("--target", choices=[*NAMES], default="H200", help=what)
    options = arguments.parse_args(argv)
    try:
        found = target(options.target)
    except Unavailable as error:
        sys.exit(f"kernels cannot compile: {error}")

    def counted(make: Callable[[], Case]) -> Iterator[Row]:
        try:
            with found.chosen():  # which has baselines of its own
                made = make()
        except ModuleNotFoundError as error:
            PROGRESS.print(f"left out: a case needs {error.name}, which is not installed\n")
            return
        for row in rows(made, found):
            yield {"target": options.target} | row

    cases = [partial(counted, make) for make in makers(options.quick)]
    command.run(options, cases, {"": COLUMNS}, pictures=pictures)
