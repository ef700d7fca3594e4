"""How many kernels programs launch on a GPU, and how often its host waits: read off the compiled program, on any machine.

XLA compiles for a GPU that is not at hand if jax has its plugin for CUDA, which takes no driver:

    pip install --no-deps jax-cuda13-plugin==<version of jax> jax-cuda13-pjrt==<the same>

Nothing is run but the chains themselves, on the device at hand, to find out how many iterations Newton's method takes. On
narrow chains a GPU does next to nothing but launch kernels, so the ratio of launches is what a speedup can come to. "latency ms"
is what they take at `depth`'s latencies for the device, waits of the host included; "predicted ms" is what `depth` predicts of
the program without having seen it compiled.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax

import deeppcr
import depth
from deeppcr.loops import FINISHING
from experiments import mlp
from experiments.common.baselines import baselines
from experiments.common.costs import cost, further
from experiments.common.kernels_figure import draw
from experiments.common.launches import Launches, launches
from experiments.common.options import conclude, in_time, parser, record
from experiments.common.progress import progress
from experiments.common.table import table
from experiments.common.targets import NAMES, Target, Unavailable, target
from experiments.common.versus import Case, Program
from experiments.rnn_parts import recurrent

Row = dict[str, Any]

WIDTHS, QUICK_WIDTHS = (2, 4, 8, 16), (8,)
LENGTH, STEPS = 1024, 100_000
EXAMPLES = 16  # of a training step
HIDDEN = ("sequential", "waits", "depth")


def makers(quick: bool) -> Iterator[Callable[[], Case]]:
    """What makes the cases: layers forwards and backwards, a recurrent unit over a long time, a training step, a sampler."""
    for width in QUICK_WIDTHS if quick else WIDTHS:
        for direction in mlp.DIRECTIONS:
            yield partial(mlp.case, mlp.Size("tanh", LENGTH, width, 1), direction)
    if not quick:
        for direction in ("forward", "gradient"):
            yield partial(recurrent.Size(recurrent.Network("gru", 1), STEPS).case, direction)
        yield residual
        yield sampler


def residual() -> Case:
    """A training step of the residual network."""
    from experiments import resnet

    scale = resnet.ON_ACCELERATOR
    task = resnet.Task(resnet.data.handwritten(), resnet.Shape(LENGTH), EXAMPLES, scale.steps)
    return resnet.case(task, ("identity / identity", "dense / dense"))


def sampler() -> Case:
    """One sample of a diffusion model."""
    from experiments import diffusion

    scale = diffusion.ACCELERATOR
    size, steps, batch = scale.middle
    setup = diffusion.Setup(
        diffusion.generator(size, scale.training), diffusion.schedule_of("DDIM"), steps, batch
    )
    solves = {name: setup.parallel(sampler) for name, sampler in diffusion.METHODS.items()}
    programs = {name: Program(solve.run, solve=solve) for name, solve in solves.items()}
    return Case(
        {"part": "speed", **setup.named},
        setup.arguments(),
        baselines(setup.sequential, steps),
        programs,
    )


def rows(case: Case, target: Target) -> Iterator[Row]:
    """A row for each program of a case: its labels, and what is launched."""
    device = depth.devices[target.name]
    scanned: Row = {}
    for name, given in {**case.baselines, **case.programs}.items():
        if name == "auto":  # here it may be another program than there, with other iterations
            continue
        program = given if isinstance(given, Program) else Program(given)
        turns = _turns(program, case.arguments[0])
        found, known = compiled(program, case.arguments[0], turns, target)
        with target.chosen():
            total = found.total(partial(_of_loop, turns))
        with_turns = {"iterations": turns} if turns is not None else {}
        latency = (
            device.call_latency
            + total.launches * device.kernel_latency
            + total.waits * device.turn_latency
        )
        row = {
            **case.labels,
            "program": name,
            "sequential": name in case.baselines,
            **with_turns,
            "outside of loops": found.here,
            "a turn": max(
                (loop.body.here for loop in found.loops if not _finishes(loop.name)), default=0
            ),
            "launches": total.launches,
            "waits": total.waits,
            "latency ms": 1e3 * latency,
        }
        scanned = scanned or row
        row["fewer launches"] = scanned["launches"] / total.launches
        row["latency speedup"] = scanned["latency ms"] / row["latency ms"]
        predicted = depth.predict(known, device)
        yield row | {
            "depth": known.depth,
            "predicted ms": 1e3 * predicted,
            "log2 of it": math.log2(predicted / latency),
        }


def compiled(
    program: Program, arguments: Any, turns: int | None, target: Target
) -> tuple[Launches, depth.Cost]:
    """What is launched, and what `depth` says of the same program."""

    with target.chosen():
        if program.prepare:
            arguments = jax.eval_shape(program.prepare, *arguments)
        found = launches(target.compile(program.run, *arguments))
        known = cost(program.run, arguments, lambda: turns or 0)
    assert known is not None
    return found, known


def _turns(program: Program, arguments: tuple[Any, ...]) -> int | None:
    """How many iterations a solve takes; None for a program without."""
    if program.solve is None:
        return None
    solution = program.solve(*arguments)
    if int(solution.result) != deeppcr.Result.CONVERGED:
        raise RuntimeError(f"expected a chain that converges, got {solution.result}.")
    return int(solution.stats.iterations)


def _finishes(name: str) -> bool:
    """Whether a loop is the one that does step by step what has not converged."""
    return f"/{FINISHING}/" in name


def _of_loop(turns: int | None, name: str) -> int:
    if _finishes(name):
        return 0
    if turns is None:
        raise ValueError(
            f"the loop {name} turns as often as data say, expected a program with a solve."
        )
    return further(turns)


def main(argv: list[str]) -> None:
    """Compile, count, and print a table."""
    arguments = parser("kernels", __doc__)
    arguments.add_argument(
        "--target", choices=[*NAMES], default="H200", help="the GPU to compile for (%(default)s)"
    )
    options = arguments.parse_args(argv)
    kept, todo = record(options), list(makers(options.quick))
    try:
        found = target(options.target)
    except Unavailable as error:
        print(f"not counted: {error}")
        return
    for make in progress(in_time(todo, options.seconds), "kernels", len(todo)):
        try:
            case = make()
        except ModuleNotFoundError as error:
            print(
                f"left out: {getattr(make, '__name__', 'a case')} needs {error.name}, which is not installed"
            )
            continue
        new = [{"target": options.target} | row for row in rows(case, found)]
        kept.add(*new)
        print(
            table([{key: value for key, value in row.items() if key not in HIDDEN} for row in new])
            + "\n",
            flush=True,
        )
    kept.finish()
    conclude(options, kept, partial(draw, kept.rows))
