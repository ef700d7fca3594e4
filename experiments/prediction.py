"""Predicted against measured time: chains of several widths and lengths, forward and gradient, sequential and parallel."""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from math import log2
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
import depth
from experiments.common.results import write
from experiments.common.table import table
from experiments.common.timing import build, interleave

Program = tuple[Callable[..., Any], tuple[Any, ...]]
ROUNDS = 3


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
    return int(deeppcr.solve(chain, jnp.zeros_like(x[0]), method=method, batch_ndim=1).stats.iterations)


def programs() -> Iterator[tuple[str, Program, int | None]]:
    """What is predicted and measured: name, program, and the turns of its while loop if it has one."""
    for n, length, batch in [(4, 1024, 1), (16, 1024, 8), (64, 1024, 1), (64, 256, 32), (256, 256, 8)]:
        forward = recurrent(n, length, batch)
        yield f"gru n={n} L={length} batch={batch} scan", forward, None
        yield f"gru n={n} L={length} batch={batch} scan, gradient", gradient(forward), None
    for n, length, batch in [(4, 1024, 1), (16, 1024, 8)]:
        yield f"gru n={n} L={length} batch={batch} auto, gradient", gradient(recurrent(n, length, batch, method="auto")), None
        newton = deeppcr.Newton(on_failure="return")
        turns = newton_turns(n, length, batch, newton)
        yield f"gru n={n} L={length} batch={batch} newton", recurrent(n, length, batch, method=newton), turns
    for n, layers, batch in [(16, 32, 8), (64, 32, 32), (256, 16, 64), (512, 8, 128)]:
        forward = unrolled(n, layers, batch)
        yield f"mlp n={n} layers={layers} batch={batch} unrolled", forward, None
        yield f"mlp n={n} layers={layers} batch={batch} unrolled, gradient", gradient(forward), None
    for n, layers, batch in [(16, 512, 8), (64, 256, 32), (256, 64, 64)]:
        forward = stacked(n, layers, batch)
        yield f"mlp n={n} layers={layers} batch={batch} scan", forward, None
        yield f"mlp n={n} layers={layers} batch={batch} scan, gradient", gradient(forward), None
    for n, length in [(4, 2048), (16, 2048), (32, 1024)]:
        yield f"recurrence n={n} L={length} associative_scan", associative(n, length), None
        for solver in ("sequential", "pcr", "cyclic_reduction", "chunked"):
            yield f"recurrence n={n} L={length} {solver}", recurrence(n, length, solver), None
    for size, steps in [(8, 1000), (100_000, 50)]:
        yield f"halving n={size} turns={steps}", halving(size, steps), steps


def measured(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least time of each of several programs: what it takes when nothing else runs, as `depth.calibrate` measures, too."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            once = interleave({name: call}, repeats=3, warmup=2)[name].minimum
            again = interleave({name: call}, repeats=max(3, min(100, int(0.1 / once))))[name].minimum
            least[name] = min(least[name], once, again)
    return least


def main(argv: list[str]) -> None:
    """Calibrate, predict, measure; print a table, in microseconds, and how far the predictions are off."""
    parser = argparse.ArgumentParser(prog="python -m experiments prediction", description=__doc__)
    parser.add_argument("--kept", action="store_true", help="take the calibration that is kept, if there is one")
    parser.add_argument("--keep", metavar="NAME", help="write the rows to results/<device>/NAME.jsonl, too")
    options = parser.parse_args(argv)
    device = depth.calibrate(refresh=not options.kept)
    costs: dict[str, depth.Cost] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for name, (run, args), turns in programs():
        costs[name] = depth.analyze(run, *args, trip_counts=turns)
        calls[name] = partial(build(run, *args).call, *args)
    times = measured(calls)
    rows: list[dict[str, Any]] = []
    for name, cost in costs.items():
        predicted = depth.predict(cost, device)
        rows.append(
            {
                "program": name,
                "depth": cost.depth,
                "work": cost.work,
                "predicted": 1e6 * predicted,
                "measured": 1e6 * times[name],
                "log2": log2(predicted / times[name]),
            }
        )
    print(table(rows))
    errors = sorted(abs(float(row["log2"])) for row in rows)
    ninth = errors[int(0.9 * (len(errors) - 1) + 0.5)]
    print(
        f"{len(rows)} programs; |log2(predicted / measured)|: median {statistics.median(errors):.2f}, 90th percentile {ninth:.2f}"
    )
    if options.keep:
        print("kept in", write(options.keep, rows))
