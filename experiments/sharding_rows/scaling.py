"""Strong and weak scaling of a stack over its chain: measured on this machine, and on paper to 1024 devices.

On paper a training step takes

    T(L/P) + (k + 1) (S(L/P, P) - S(L/P, 1) + messages) + k tests + the last state,

where T is the step of one device with L/P layers, k Newton iterations and one adjoint, and S(., P) is what one of P devices
computes of a linear recurrence, all as `depth.predict` says of the programs themselves. Messages are those of
`deeppcr.linear.sharded`: log2(P) times a block and a vector for each example, then a vector; a test of convergence is a state
from the neighbour and two numbers of all devices. Beside it: all layers on one device, and their batch over P devices.
"""

import dataclasses
from collections.abc import Iterator
from functools import cache

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

import deeppcr
import depth
from experiments.common.timing import build, interleave
from experiments.sharding_rows.links import LINKS, Link, distances
from experiments.sharding_rows.measured import Row, check_equal, mesh_of
from experiments.sharding_rows.stack import (
    Size,
    chain_loss,
    examples,
    layer_of,
    parallel_step,
    placed,
    sequential_loss,
    training_step,
    weights,
)

MEASURED = (1, 2, 4, 8)  # devices
ON_PAPER = tuple(2**k for k in range(11))
STRONG = Size(8192, 16, 32)
PART = 64  # layers on each device, for weak scaling
FLOAT = 4  # bytes
SOLVER = "cyclic_reduction"  # what `deeppcr` takes for blocks of this width where rounds cost more than work


# -- measured


def measured_rows(quick: bool, repeats: int) -> Iterator[Row]:
    """1 to 8 devices; simulated ones share the cores of the machine, so that more of them can hardly be faster."""
    part, width, batch = (8, 4, 8) if quick else (PART, 16, 32)
    times = cache(lambda size, count: _measured(size, count, repeats))
    for kind in ("strong", "weak"):
        for count in MEASURED[:: 3 if quick else 1]:
            size = Size(part * (8 if kind == "strong" else count), width, batch)
            many, one = times(size, count)
            yield {
                "scaling": kind,
                "devices": count,
                "L": size.length,
                "iterations": iterations(size),
                "ms, lax.scan, one device": 1e3 * one,
                "ms, chain": 1e3 * many,
                "speedup": one / many,
            }


def _measured(size: Size, count: int, repeats: int) -> tuple[float, float]:
    """Seconds of a training step on ``count`` devices, and by `jax.lax.scan` on one."""
    mesh = mesh_of((count,), ("chain",))
    chain, batch = placed(size, mesh)
    many = build(parallel_step(chain, mesh), chain.inputs, batch).call
    here = jax.device_put((weights(size), examples(size)), jax.devices()[0])
    one = build(training_step(sequential_loss(size)), *here).call
    check_equal(f"{size} on {count}", many(chain.inputs, batch), one(*here))
    times = interleave({"many": lambda: many(chain.inputs, batch), "one": lambda: one(*here)}, repeats)
    return times["many"].median, times["one"].median


@cache
def iterations(size: Size) -> int:
    """How many Newton iterations the chain takes."""

    def solve(weights: object, z: jax.Array) -> jax.Array:
        return deeppcr.solve(deeppcr.Chain(layer_of(size), weights), z, method="newton", batch_ndim=1).stats.iterations

    return int(jax.jit(solve)(weights(size), examples(size)[0]))


# -- on paper


def paper_rows(turns: int, quick: bool) -> Iterator[Row]:
    """Every device model, strong and weak, 1 to 1024 devices.

    Args:
        turns: how many Newton iterations a training step takes.
        quick: only 1, 32 and 1024 devices.
    """
    for name, link in LINKS.items():
        for kind in ("strong", "weak"):
            for count in ON_PAPER[:: 5 if quick else 1]:
                size = dataclasses.replace(STRONG, length=STRONG.length if kind == "strong" else PART * count)
                one = _sequential(size, name)
                over_batch = over_the_batch(size, count, name, link)
                computed, sent = over_the_chain(size, count, name, link, turns)
                yield {
                    "on paper": name,
                    "scaling": kind,
                    "devices": count,
                    "L": size.length,
                    "ms, lax.scan, one device": 1e3 * one,
                    "ms, batch": None if over_batch is None else 1e3 * over_batch,
                    "ms, chain": 1e3 * (computed + sent),
                    "of it messages": 1e3 * sent,
                    "speedup": one / (computed + sent),
                    "parameter MB": 1e-6 * FLOAT * size.length * (size.width**2 + size.width) / count,
                    "block MB": 1e-6 * FLOAT * size.length * size.batch * size.width**2 / count,
                }


def over_the_batch(size: Size, count: int, name: str, link: Link) -> float | None:
    """Seconds of a step with the batch over the devices; None for more devices than examples.

    With one all-reduce of all slopes at the end, which takes a `jax.shard_map`: left to itself the compiler sums every layer's
    in its turn of the loop, which costs L times the latency.
    """
    if count > size.batch:
        return None
    slopes = FLOAT * size.length * (size.width**2 + size.width)
    return _sequential(dataclasses.replace(size, batch=size.batch // count), name) + link.all_reduce(slopes, count)


def over_the_chain(size: Size, count: int, name: str, link: Link, turns: int) -> tuple[float, float]:
    """Seconds that a device computes and that it waits for messages."""
    part = size.length // count
    computed = _one_device(dataclasses.replace(size, length=part), turns, name)
    if count == 1:
        return computed, 0.0
    computed += (turns + 1) * (_solve(size, part, count, name) - _solve(size, part, 1, name))
    state = FLOAT * size.batch * size.width
    block = state * size.width
    rounds = sum(link.message(block + state, distance) for distance in distances(count))
    number = sum(link.message(FLOAT, distance) for distance in distances(count))
    last = sum(link.message(state, distance) for distance in distances(count))
    solve, test = rounds + link.message(state, 1), link.message(state, 1) + 2 * number
    return computed, (turns + 1) * solve + turns * test + last


@cache
def _sequential(size: Size, name: str) -> float:
    return depth.predict(depth.analyze(training_step(sequential_loss(size)), *_shapes(size)), name)


@cache
def _one_device(size: Size, turns: int, name: str) -> float:
    chain = deeppcr.Chain(layer_of(size), _shapes(size)[0])
    # Without the rescue, a branch that is not taken.
    loss = chain_loss(chain, method=deeppcr.Newton(linear=SOLVER, on_failure="return"), adjoint=SOLVER)
    return depth.predict(depth.analyze(training_step(loss), *_shapes(size), trip_counts=turns), name)


@cache
def _solve(size: Size, part: int, count: int, name: str) -> float:
    """Seconds that one of ``count`` devices computes for a linear recurrence with ``part`` steps on each."""
    mesh = AbstractMesh((count,), ("chain",), axis_types=(AxisType.Auto,))
    A = jax.ShapeDtypeStruct((part * count, size.batch, size.width, size.width), jnp.float32)
    b = jax.ShapeDtypeStruct(A.shape[:-1], jnp.float32)
    cost = depth.analyze(lambda A, b: deeppcr.solve_bidiagonal(A, b, solver=deeppcr.Sharded(mesh, "chain", SOLVER)), A, b)
    call = depth.devices[name].call_latency
    return (depth.predict(cost, name) - call) / count  # `depth` counts what every device does, one after another


def _shapes(size: Size) -> tuple[object, object]:
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (weights(_tiny(size)), examples(size)))
    layers = {key: jax.ShapeDtypeStruct((size.length, *x.shape[1:]), x.dtype) for key, x in wanted[0].items()}
    return layers, wanted[1]


def _tiny(size: Size) -> Size:
    """One layer, whose weights are quickly drawn."""
    return dataclasses.replace(size, length=1)
