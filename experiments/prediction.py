"""Predicted against measured time: chains of several widths and lengths, forward and gradient, sequential and parallel.

Every program stands for itself: what `depth.predict` says of it on this device, and what one call takes. "log2" is that of
predicted over measured time, of the median; the model of the device is made of least times, so at the end errors are summed up
for the least times, too. Where a chain has a sequential program and others, these have speedups over it: as depths tell, as
predicted, and as measured; and "error" is how far their result is from its result.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
import depth
from experiments.common.costs import analyze
from experiments.common.options import conclude, in_time, model, parser, record
from experiments.common.plots import figure
from experiments.common.progress import progress
from experiments.common.summary import errors
from experiments.common.table import table
from experiments.common.timing import Build, Timing, build, interleave
from experiments.common.versus import distance

Row = dict[str, Any]
Program = tuple[Callable[..., Any], tuple[Any, ...]]

SHARE = 0.1  # seconds that a program is called over and over, and at least as often as is asked for
MOST_CALLS = 100
PRINTED = (
    "chain",
    "program",
    "depth",
    "predicted ms",
    "ms",
    "min ms",
    "log2",
    "depth speedup",
    "predicted speedup",
    "speedup",
)


@dataclass(frozen=True)
class Listed:
    """What is predicted and measured.

    Attributes:
        chain: what is computed: "gru n=4 L=1024 batch=1".
        name: by which program; the first that is listed of a chain is its sequential one.
        program: a function and its arguments.
        turns: of the loop whose end depends on data, if it has one.
    """

    chain: str
    name: str
    program: Program
    turns: int | None = None


def normal(*shape: int, scale: float = 1.0) -> Array:
    """Reproducible normal numbers."""
    return scale * jax.random.normal(jax.random.key(sum(shape)), shape)


def gru(weights: dict[str, Array], h: Array, x: Array) -> Array:
    """A gated recurrent unit; ``h: [batch, n]``."""
    reset, update = jnp.split(jax.nn.sigmoid(x @ weights["x"] + h @ weights["h"]), 2, axis=-1)
    return update * h + (1 - update) * jnp.tanh(x @ weights["xn"] + (reset * h) @ weights["hn"])


def recurrent(n: int, length: int, batch: int, **options: Any) -> Program:
    """A GRU over a sequence, by `jax.lax.scan` or, with options, by deeppcr."""
    shapes = {"x": (n, 2 * n), "h": (n, 2 * n), "xn": (n, n), "hn": (n, n)}
    weights = {name: normal(*shape, scale=n**-0.5) for name, shape in shapes.items()}

    def run(weights: dict[str, Array], x: Array) -> Array:
        def step(h: Array, x: Array) -> tuple[Array, Array]:
            h = gru(weights, h, x)
            return h, h

        init = jnp.zeros_like(x[0])
        if options:
            return deeppcr.scan(step, init, x, batch_ndim=1, **options)[1]
        return lax.scan(step, init, x)[1]

    return run, (weights, normal(length, batch, n))


def unrolled(n: int, layers: int, batch: int) -> Program:
    """A stack of layers as a Python loop writes it."""

    def run(weights: Array, x: Array) -> Array:
        for layer in range(layers):
            x = x + jnp.tanh(x @ weights[layer])
        return x

    return run, (normal(layers, n, n, scale=n**-0.5), normal(batch, n))


def stacked(n: int, layers: int, batch: int) -> Program:
    """A stack of layers as a scan."""

    def run(weights: Array, x: Array) -> Array:
        return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, weights)[0]

    return run, (normal(layers, n, n, scale=n**-0.5), normal(batch, n))


def recurrence(n: int, length: int, solver: str) -> Program:
    """The linear recurrence ``y_l = A_l y_{l-1} + b_l``."""

    def run(a: Array, b: Array) -> Array:
        return deeppcr.solve_bidiagonal(a, b, solver=solver)

    return run, (normal(length, n, n, scale=n**-0.5 / 2), normal(length, n))


def associative(n: int, length: int) -> Program:
    """The same by `jax.lax.associative_scan`."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        return later[0] @ earlier[0], jnp.einsum("lij,lj->li", later[0], earlier[1]) + later[1]

    def run(a: Array, b: Array) -> Array:
        return lax.associative_scan(combine, (a, b))[1]

    return run, (normal(length, n, n, scale=n**-0.5 / 2), normal(length, n))


def halving(size: int, steps: int) -> Program:
    """A loop whose end depends on data: turns until the state is small."""

    def run(x: Array) -> Array:
        return lax.while_loop(lambda x: x[0] > 2.0**-steps, lambda x: x / 2, x)

    return run, (jnp.ones(size),)


def gradient(program: Program) -> Program:
    """The gradient of the mean square of all that a program returns, to all that it takes."""
    run, args = program
    argnums = tuple(range(len(args)))
    return jax.grad(lambda *args: jnp.mean(run(*args) ** 2), argnums), args


def newton_turns(n: int, length: int, batch: int, method: deeppcr.Newton) -> int:
    """How often Newton's method turns on `recurrent`: what the analysis cannot know."""
    _, (weights, x) = recurrent(n, length, batch)
    chain = deeppcr.Chain(lambda h, x: gru(weights, h, x), x)
    return int(
        deeppcr.solve(chain, jnp.zeros_like(x[0]), method=method, batch_ndim=1).stats.iterations
    )


def programs(quick: bool = False) -> Iterator[Listed]:
    """What is listed; if quick, one size of each kind."""

    def some(sizes: Sequence[Any]) -> Sequence[Any]:
        return sizes[:1] if quick else sizes

    for n, length, batch in some(
        [(4, 1024, 1), (16, 1024, 8), (64, 1024, 1), (64, 256, 32), (256, 256, 8)]
    ):
        chain, forward = f"gru n={n} L={length} batch={batch}", recurrent(n, length, batch)
        yield Listed(chain, "scan", forward)
        yield Listed(f"{chain}, gradient", "scan", gradient(forward))
    for n, length, batch in some([(4, 1024, 1), (16, 1024, 8)]):
        chain = f"gru n={n} L={length} batch={batch}"
        yield Listed(
            f"{chain}, gradient", "auto", gradient(recurrent(n, length, batch, method="auto"))
        )
        newton = deeppcr.Newton(on_failure="return")
        turns = newton_turns(n, length, batch, newton)
        yield Listed(chain, "newton", recurrent(n, length, batch, method=newton), turns)
    for n, layers, batch in some([(16, 32, 8), (64, 32, 32), (256, 16, 64), (512, 8, 128)]):
        chain, forward = f"mlp n={n} layers={layers} batch={batch}", unrolled(n, layers, batch)
        yield Listed(chain, "unrolled", forward)
        yield Listed(f"{chain}, gradient", "unrolled", gradient(forward))
    for n, layers, batch in some([(16, 512, 8), (64, 256, 32), (256, 64, 64)]):
        chain, forward = f"mlp n={n} layers={layers} batch={batch}", stacked(n, layers, batch)
        yield Listed(chain, "scan", forward)
        yield Listed(f"{chain}, gradient", "scan", gradient(forward))
    for n, length in some([(4, 2048), (16, 2048), (32, 1024)]):
        chain = f"recurrence n={n} L={length}"
        yield Listed(chain, "sequential", recurrence(n, length, "sequential"))
        yield Listed(chain, "associative_scan", associative(n, length))
        for solver in ("pcr", "cyclic_reduction", "chunked"):
            yield Listed(chain, solver, recurrence(n, length, solver))
    for size, steps in some([(8, 1000), (100_000, 50)]):
        yield Listed(f"halving n={size} turns={steps}", "while_loop", halving(size, steps), steps)


def measured(call: Callable[[], Any], repeats: int) -> Timing:
    """The times of a program: at least so many calls, and of a short one more."""
    once = interleave({"": call}, repeats=3, warmup=2)[""].minimum
    return interleave({"": call}, repeats=max(repeats, min(MOST_CALLS, int(SHARE / once))))[""]


def measurement(
    one: Listed, cost: depth.Cost, predicted: float, built: Build, timing: Timing
) -> Row:
    """What is known of one program, in the words of `experiments.common.versus.race`."""
    found = {"chain": one.chain, "program": one.name, "ms": 1e3 * timing.median}
    found |= {
        "min ms": 1e3 * timing.minimum,
        "max ms": 1e3 * timing.maximum,
        "repeats": timing.count,
    }
    found |= {"trace s": built.lower, "compile s": built.compile}
    if built.temporary_bytes is not None:
        found["temp MB"] = built.temporary_bytes / 1e6
    return found | {
        "depth": cost.depth,
        "work": cost.work,
        "predicted ms": 1e3 * predicted,
        "log2": log2(predicted / timing.median),
    }


def beside(row: Row, sequential: Row) -> Row:
    """Speedups over the sequential program of the same chain: by depth, predicted, measured."""
    return {
        "depth speedup": sequential["depth"] / max(row["depth"], 1),
        "predicted speedup": sequential["predicted ms"] / row["predicted ms"],
        "speedup": sequential["ms"] / row["ms"],
    }


def compare(listed: Iterator[Listed], device: depth.Device, repeats: int) -> Iterator[Row]:
    """Predict and measure one program after another."""
    sequential: dict[str, tuple[Row, Any]] = {}  # by chain: its row and its result
    for one in listed:
        run, args = one.program
        cost = analyze(run, *args, turns=one.turns)
        built = build(run, *args)
        call = partial(built.call, *args)
        found = measurement(one, cost, depth.predict(cost, device), built, measured(call, repeats))
        first, expected = sequential.setdefault(one.chain, (found, jax.device_get(call())))
        if first is not found:
            found |= {"error": distance(jax.device_get(call()), expected), **beside(found, first)}
        yield found


def summary(rows: Sequence[Row]) -> list[str]:
    """How far the predictions are off: of median and of least times, and of speedups."""
    least = [{"log2": log2(row["predicted ms"] / row["min ms"])} for row in rows]
    speedups = [
        {"log2": log2(row["predicted speedup"] / row["speedup"])}
        for row in rows
        if "speedup" in row
    ]
    lines = []
    for what, of_them in (("median times", rows), ("least times", least), ("speedups", speedups)):
        if found := errors(of_them):
            lines.append(
                f"{found['programs']} {what}: |log2(predicted / measured)| is {found['median']:.2f} in the median, "
                f"{found['90th percentile']:.2f} at the 90th percentile"
            )
    return lines


def draw(rows: Sequence[Row], path: Path) -> None:
    """Predicted against measured times, a colour for each kind of chain; grey lines are twice and half as much."""
    with figure(path, height=4.2) as (axes,):
        for kind in dict.fromkeys(row["chain"].partition(" ")[0] for row in rows):
            found = [row for row in rows if row["chain"].startswith(kind)]
            axes.plot(
                [row["ms"] for row in found],
                [row["predicted ms"] for row in found],
                "o",
                ms=4,
                label=kind,
            )
        times = [row[key] for row in rows for key in ("ms", "predicted ms")]
        ends = [min(times, default=0.1), max(times, default=1)]
        for factor, color in ((1, "black"), (2, "0.7"), (0.5, "0.7")):
            axes.plot(ends, [factor * end for end in ends], color=color, linewidth=1, zorder=0)
        axes.set(
            title="time of a call",
            xlabel="measured [ms]",
            ylabel="predicted [ms]",
            xscale="log",
            yscale="log",
        )
        axes.legend(fontsize=7)


def main(argv: list[str]) -> None:
    """Predict and measure; print a table and how far the predictions are off, and with --keep write the rows and the figure."""
    options = parser("prediction", __doc__).parse_args(argv)
    device, kept = model(options), record(options)
    for found in progress(
        compare(in_time(programs(options.quick), options.seconds), device, options.repeats),
        "prediction",
    ):
        kept.add(found)
    kept.finish()
    print(table([{key: row[key] for key in PRINTED if key in row} for row in kept.rows]))
    print("\n".join(summary(kept.rows)))
    conclude(options, kept, partial(draw, kept.rows))
