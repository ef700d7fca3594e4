"""How good are predicted times?

Forward passes and gradients, sequential and parallel: the time that `depth.predict` predicts for
this device, and the time of a call.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import log2
from typing import Any

from jax import lax

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.plots import Figures, legend, looks, plain_numbers, sheet, styled
from experiments.bench.programs import Scan, Setting, solver, unrolled
from experiments.bench.summary import errors
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import zoo
from experiments.recurrence import associative_scan, problem

KINDS = {"gru": "gru n={} L={} batch={}", "tanh": "mlp n={} layers={} batch={}"}
SHARE = 0.015  # seconds of calls in a round
TAKES = "1 min"
TIMES = {
    "chain": "kind and size of the chain",
    **{key: BENCH[key] for key in ("program", "predicted ms", "ms")},
    "min ms": "its minimum, which the model of the device is made for",
    "log2": "log2(predicted ms / ms): 0 is right, 1 is twice as long as measured",
    **{key: BENCH[key] for key in ("predicted speedup", "speedup", "depth speedup")},
}


def recurrence(solver: str) -> Callable[..., Any]:
    """The linear recurrence ``y_l = A_l y_{l-1} + b_l``."""
    return lambda a, b: deeppcr.solve_bidiagonal(a, b, solver=solver)


def newton(task: zoo.Task) -> Variant:
    """A chain by Newton's method, and a solve that counts its iterations."""
    method = deeppcr.Newton(on_failure="return")

    def solve(weights: Any, init: Any, inputs: Any) -> deeppcr.Solution:
        return solver(partial(task.step, weights), method, batch_ndim=1)(init, inputs)

    return Variant(task.forward(Setting(method).scan), solve=solve)


def cases(quick: bool = False) -> Iterator[Case]:
    """All cases; with ``quick`` one size of each kind."""

    def some(*sizes: Any) -> Sequence[Any]:
        return sizes[:1] if quick else sizes

    def both(
        kind: str, size: tuple[int, int, int], name: str, scan: Scan, others: bool = False
    ) -> Iterator[Case]:
        """A chain forward and its gradient, each with a program of deeppcr if ``others``."""
        task = zoo.task(zoo.Specimen(kind, *size))
        solved: Any = {"newton": newton(task)} if others else {}
        auto = {"auto": task.gradient(Setting().scan)} if others else {}
        chain = KINDS[kind].format(*size)
        for said, make, more in (("", task.forward, solved), (", gradient", task.gradient, auto)):
            labels = {"part": "times", "chain": chain + said}
            yield Case(labels, [task.arguments], {name: make(scan)}, more)

    recurrent = ((4, 1024, 1), (16, 1024, 8), (64, 1024, 1), (64, 256, 32), (256, 256, 8))
    for size in some(*recurrent):
        yield from both("gru", size, "scan", lax.scan, others=size[0] <= 16)
    for size in some((16, 32, 8), (64, 32, 32), (256, 16, 64), (512, 8, 128)):
        yield from both("tanh", size, "unrolled", unrolled)
    for size in some((16, 512, 8), (64, 256, 32), (256, 64, 64)):
        yield from both("tanh", size, "scan", lax.scan)
    for n, length in some((4, 2048), (16, 2048), (32, 1024)):
        blocks = problem(length, n, seed=0)
        others = {name: recurrence(name) for name in ("pcr", "cyclic_reduction", "chunked")}
        labels = {"part": "times", "chain": f"recurrence n={n} L={length}"}
        loop = {"sequential": recurrence("sequential")}
        yield Case(labels, [blocks], loop, {"associative_scan": associative_scan, **others})


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """The errors of predictions: of median times, of minima, and of speedups."""
    rows = [row for row in rows if "log2" in row]
    others = [row for row in rows if not row["baseline"] and "speedup" in row]
    found = {
        "median times": rows,
        "minima": [{"log2": log2(row["predicted ms"] / row["min ms"])} for row in rows],
        "speedups": [{"log2": log2(row["predicted speedup"] / row["speedup"])} for row in others],
    }
    for what, of_them in found.items():
        if said := errors(of_them):
            yield (
                f"{said['programs']} {what}: |log2(predicted / measured)| has a median of "
                f"{said['median']:.2f} and a 90th percentile of {said['90th percentile']:.2f}"
            )


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Predicted against measured times, a look for each kind of chain."""
    keys = ("ms", "predicted ms")
    rows = [row for row in rows if row["part"] == "times" and {*keys} <= row.keys()]
    if not rows:
        return {}
    drawing, (axes,) = sheet(
        "Time of a call, predicted and measured (on the line is best)", height=4.6
    )
    rows = [row | {"kind": row["chain"].partition(" ")[0]} for row in rows]
    for kind, look in looks([row | {"baseline": False} for row in rows], "kind").items():
        x, y = ([row[key] for row in rows if row["kind"] == kind] for key in keys)
        axes.plot(x, y, **look, ls="", label=kind, alpha=0.8)
    values = [row[key] for row in rows for key in keys]
    ends = [min(values) / 1.3, max(values) * 1.3]
    axes.plot(ends, ends, color="black", linewidth=1, zorder=0, label="equal")
    dashes = {"color": "0.6", "linewidth": 1, "ls": "--", "zorder": 0}
    axes.plot(ends, [2 * end for end in ends], **dashes, label="twice and half of it")
    axes.plot(ends, [end / 2 for end in ends], **dashes)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="measured [ms]", ylabel="predicted [ms]")
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    legend(drawing, 6)
    return {"times": drawing}


def main(argv: list[str]) -> None:
    """Predict and measure."""
    options = command.parser("prediction", __doc__).parse_args(argv)
    device, effort = depth.at_hand(), Effort(options.repeats, SHARE)
    jobs: list[command.Job] = [
        partial(bench, case, device, effort) for case in cases(options.quick)
    ]
    tables = {"times": TIMES}
    command.run(options, jobs, tables, summary=summary, pictures=pictures, together=tables)
