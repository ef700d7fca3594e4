"""How good are predicted times?

Forward passes and gradients, sequential and parallel: the time that `depth.predict` predicts for
this device, and the time of a call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import log2
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.plots import Figures, legend, looks, plain_numbers, sheet, styled
from experiments.bench.programs import Setting
from experiments.bench.summary import errors
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import cells

Function = Callable[..., Any]
Program = tuple[Function, tuple[Any, ...]]

SHARE = 0.015  # seconds of calls in a round
TAKES = "1 min"
TIMES = {
    "chain": "kind and size of the chain",
    "program": "what runs",
    "predicted ms": "predicted time of a call, in milliseconds",
    "ms": "time of a call, in milliseconds (median)",
    "min ms": "its minimum, which the model of the device is made for",
    "log2": "log2(predicted ms / ms): 0 is right, 1 is twice as long as measured",
    "predicted speedup": "speedup over the first program of the chain, predicted",
    "speedup": "the same, measured",
    "depth speedup": "ratio of the depths: the limit on unlimited processors",
}


def normal(*shape: int, scale: float = 1.0) -> Array:
    """Normal random numbers, the same for each shape."""
    return scale * jax.random.normal(jax.random.key(sum(shape)), shape)


def recurrent(n: int, length: int, batch: int, scan: Function = lax.scan) -> Program:
    """A GRU over a sequence."""

    def run(weights: dict[str, Array], x: Array) -> Any:
        def step(h: Array, x: Array) -> tuple[Array, Array]:
            h = cells.gru(weights, h, x)
            return h, h

        return scan(step, jnp.zeros_like(x[0]), x)[1]

    return run, (cells.gru_weights(n), normal(length, batch, n))


def stack(n: int, layers: int, batch: int, scan: Function | None = lax.scan) -> Program:
    """A stack of layers as a scan, or as a Python loop writes it."""

    def run(weights: Array, x: Array) -> Array:
        if scan:
            found: Array = scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, weights)[0]
            return found
        for layer in range(layers):
            x = x + jnp.tanh(x @ weights[layer])
        return x

    return run, (normal(layers, n, n, scale=n**-0.5), normal(batch, n))


def recurrence(solver: str) -> Function:
    """The linear recurrence ``y_l = A_l y_{l-1} + b_l``."""
    return lambda a, b: deeppcr.solve_bidiagonal(a, b, solver=solver)


def associative(a: Array, b: Array) -> Array:
    """The linear recurrence by `jax.lax.associative_scan`."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        return later[0] @ earlier[0], jnp.einsum("lij,lj->li", later[0], earlier[1]) + later[1]

    return lax.associative_scan(combine, (a, b))[1]


def gradient(run: Function, arguments: tuple[Any, ...]) -> Function:
    """The gradient of the mean square of a program's result with respect to all arguments."""
    return jax.grad(lambda *args: jnp.mean(run(*args) ** 2), tuple(range(len(arguments))))


def newton(n: int, length: int, batch: int) -> Variant:
    """A GRU by Newton's method, and a solve that counts its iterations."""
    method = deeppcr.Newton(on_failure="return")

    def solve(weights: Any, x: Array) -> deeppcr.Solution:
        chain = deeppcr.Chain(partial(cells.gru, weights), x)
        return deeppcr.solve(chain, jnp.zeros_like(x[0]), method=method, batch_ndim=1)

    return Variant(recurrent(n, length, batch, Setting(method).scan)[0], solve=solve)


def cases(quick: bool = False) -> Iterator[Case]:
    """All cases; with ``quick`` one size of each kind."""

    def some(*sizes: Any) -> Sequence[Any]:
        return sizes[:1] if quick else sizes

    def case(chain: str, name: str, program: Program, **others: Any) -> Case:
        run, arguments = program
        return Case({"part": "times", "chain": chain}, [arguments], {name: run}, others)

    def both(
        chain: str,
        name: str,
        program: Program,
        forward: Mapping[str, Any] = {},
        backward: Mapping[str, Any] = {},
    ) -> Iterator[Case]:
        yield case(chain, name, program, **forward)
        slope = (gradient(*program), program[1])
        yield case(f"{chain}, gradient", name, slope, **backward)

    recurrent_sizes = ((4, 1024, 1), (16, 1024, 8), (64, 1024, 1), (64, 256, 32), (256, 256, 8))
    for n, length, batch in some(*recurrent_sizes):
        chain, program = f"gru n={n} L={length} batch={batch}", recurrent(n, length, batch)
        if n <= 16:
            auto = gradient(*recurrent(n, length, batch, Setting().scan))
            solved = {"newton": newton(n, length, batch)}
            yield from both(chain, "scan", program, solved, {"auto": auto})
        else:
            yield from both(chain, "scan", program)
    for n, layers, batch in some((16, 32, 8), (64, 32, 32), (256, 16, 64), (512, 8, 128)):
        chain = f"mlp n={n} layers={layers} batch={batch}"
        yield from both(chain, "unrolled", stack(n, layers, batch, None))
    for n, layers, batch in some((16, 512, 8), (64, 256, 32), (256, 64, 64)):
        chain = f"mlp n={n} layers={layers} batch={batch}"
        yield from both(chain, "scan", stack(n, layers, batch))
    for n, length in some((4, 2048), (16, 2048), (32, 1024)):
        blocks = (normal(length, n, n, scale=n**-0.5 / 2), normal(length, n))
        others = {name: recurrence(name) for name in ("pcr", "cyclic_reduction", "chunked")}
        program = recurrence("sequential"), blocks
        chain = f"recurrence n={n} L={length}"
        yield case(chain, "sequential", program, associative_scan=associative, **others)


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
