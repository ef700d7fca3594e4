"""Seconds to trace a program, and seconds that `depth` takes to analyse it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import depth
from depth.jaxprs import inside, without_constants
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def shapes(*sizes: int) -> jax.ShapeDtypeStruct:
    """The shape of an argument."""
    return jax.ShapeDtypeStruct(sizes, "float32")


def straight(equations: int, weights: int) -> Program:
    """A program without loops: three equations a layer, on ``weights`` arrays."""

    def run(weights: list[Array], x: Array) -> Array:
        for layer in range(equations // 3):
            x = jnp.tanh(x * weights[layer % len(weights)]) + x
        return x

    return run, ([shapes(8)] * weights, shapes(8))


def doublings(levels: int) -> Program:
    """A function that calls another one twice, and so on for ``levels`` levels."""

    def twice(inner: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return jax.jit(lambda x: inner(inner(x)))

    run: Callable[[Array], Array] = jnp.sin
    for _ in range(levels):
        run = twice(run)
    return run, (shapes(),)


def training(layers: int, steps: int) -> Program:
    """Gradient descent with momentum, as a scan that carries all weights."""

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

        return lax.scan(step, (weights, jax.tree.map(jnp.zeros_like, weights)), None, length=steps)[
            0
        ]

    return run, ([shapes(8, 8)] * layers, shapes(8))


def programs() -> Iterator[tuple[str, Program]]:
    """All programs, by name."""
    yield "straight line", straight(30_000, 1)
    yield "straight line, 100 weights", straight(30_000, 100)
    run, args = straight(30_000, 100)
    yield "the same in jit", (jax.jit(run), args)
    yield "40 doublings", doublings(40)
    yield "scan of 10^9 steps", training(1, 10**9)
    for layers in (30, 100, 200):
        yield f"training of {layers} layers, 10^4 steps", training(layers, 10_000)


def size(jaxpr: Any, counted: set[int] | None = None) -> int:
    """Number of equations, including those of inner programs, each counted once."""
    counted = set() if counted is None else counted
    if id(jaxpr) in counted:
        return 0
    counted.add(id(jaxpr))
    return sum(1 + sum(size(one, counted) for one in inside(equation)) for equation in jaxpr.eqns)


def measure(name: str, program: Program, repeats: int) -> Row:
    """Trace a program once, and analyse its jaxpr several times."""
    run, arguments = program
    start = time.perf_counter()
    jaxpr = jax.make_jaxpr(run)(*arguments)
    traced = time.perf_counter()
    found = depth.compute_depth(jaxpr)
    first, again = time.perf_counter() - traced, []
    for _ in range(repeats):
        begin = time.perf_counter()
        depth.compute_depth(jaxpr)
        again.append(time.perf_counter() - begin)
    row: Row = {"part": "analysis", "program": name, "equations": size(without_constants(jaxpr))}
    seconds = {"trace s": traced - start, "first s": first, "analyse s": min(again)}
    return row | {"depth": found} | seconds | {"repeats": repeats}


def rows(repeats: int) -> Iterator[Row]:
    """A row for each program."""
    every = list(programs())
    for number, (name, program) in enumerate(every):
        PROGRESS.say(f"analysing {name}", number / len(every))
        yield measure(name, program, repeats)
