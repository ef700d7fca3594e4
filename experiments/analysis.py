"""How long `depth` takes: seconds to trace a program, and seconds to analyse what was traced."""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import depth
from depth.jaxprs import inside, without_constants
from experiments.common.results import write
from experiments.common.table import table

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def shapes(*sizes: int) -> jax.ShapeDtypeStruct:
    """An argument without values."""
    return jax.ShapeDtypeStruct(sizes, "float32")


def straight(equations: int, weights: int) -> Program:
    """A straight line of so many equations, three a layer, on so many weights."""

    def run(weights: list[Array], x: Array) -> Array:
        for layer in range(equations // 3):
            x = jnp.tanh(x * weights[layer % len(weights)]) + x
        return x

    return run, ([shapes(8)] * weights, shapes(8))


def doublings(levels: int) -> Program:
    """A function that calls another twice, which calls another twice ..."""

    def twice(inner: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return jax.jit(lambda x: inner(inner(x)))

    run: Callable[[Array], Array] = jnp.sin
    for _ in range(levels):
        run = twice(run)
    return run, (shapes(),)


def training(layers: int, steps: int) -> Program:
    """Training by momentum, as a scan that carries all weights."""

    def loss(weights: list[Array], x: Array) -> Array:
        for w in weights:
            x = jnp.tanh(w @ x)
        return jnp.sum(x)

    def run(weights: list[Array], x: Array) -> Any:
        def step(state: Any, _: None) -> tuple[Any, None]:
            weights, velocity = state
            gradients = jax.grad(loss)(weights, x)
            velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, velocity, gradients)
            return (jax.tree.map(jnp.add, weights, velocity), velocity), None

        return lax.scan(step, (weights, jax.tree.map(jnp.zeros_like, weights)), None, length=steps)[0]

    return run, ([shapes(8, 8)] * layers, shapes(8))


def programs() -> Iterator[tuple[str, Program]]:
    """What is analysed, by name."""
    yield "straight line", straight(30_000, 1)
    yield "straight line, 100 weights", straight(30_000, 100)
    run, args = straight(30_000, 100)
    yield "the same in jit", (jax.jit(run), args)
    yield "40 doublings", doublings(40)
    yield "scan of 10^9 steps", training(1, 10**9)
    for layers in (30, 100, 200):
        yield f"training of {layers} layers, 10^4 steps", training(layers, 10_000)


def size(jaxpr: Any) -> int:
    """Equations, those of programs inside counted once for each place."""
    return sum(1 + sum(map(size, inside(equation))) for equation in jaxpr.eqns)


def main(argv: list[str]) -> None:
    """Trace and analyse; print a table, in seconds."""
    parser = argparse.ArgumentParser(prog="python -m experiments analysis", description=__doc__)
    parser.add_argument("--keep", metavar="NAME", help="write the rows to results/<device>/NAME.jsonl, too")
    options = parser.parse_args(argv)
    rows = []
    for name, (run, args) in programs():
        start = time.perf_counter()
        jaxpr = jax.make_jaxpr(run)(*args)
        traced = time.perf_counter()
        depths = [depth.compute_depth(jaxpr)]
        first = time.perf_counter() - traced
        repeats = []
        for _ in range(3):
            begin = time.perf_counter()
            depths.append(depth.compute_depth(jaxpr))
            repeats.append(time.perf_counter() - begin)
        equations = size(without_constants(jaxpr)) if "doublings" not in name else 40
        rows.append(
            {
                "program": name,
                "equations": equations,
                "depth": depths[0],
                "trace": traced - start,
                "first": first,
                "analyse": min(repeats),
            }
        )
    print(table(rows))
    if options.keep:
        print("kept in", write(options.keep, rows))
