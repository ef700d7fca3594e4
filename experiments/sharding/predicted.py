"""Predicted time of a training step of a stack over its chain, on linked devices.

By Newton's method it takes

    T(L/P) + (k + 1) (S(L/P, P) - S(L/P, 1) + messages) + k tests + the last state,

where T is the step of one device with L/P layers, k Newton iterations and one adjoint, and S(., P)
is what one of P devices computes of a linear recurrence, all as `depth.predict` says of the
programs themselves. Messages are those of
`deeppcr.linear.shards`: log2(P) times a block and a vector for each sample of the batch, then a
vector; a test of convergence is a state from the neighbour and two numbers of all devices. Where
the layers are run one by one, device after device, and only the adjoint is solved in parallel, it
takes

    T'(L/P) + F(L) - F(L/P) + (S(L/P, P) - S(L/P, 1) + messages) + P - 1 states + the last state,

where T' is the step of one device that runs its L/P layers so, and F the forward pass.
"""

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

import deeppcr
import depth
from experiments.bench.costs import analyze
from experiments.bench.table import Row
from experiments.sharding.links import LINKS, Link, distances
from experiments.sharding.stack import (
    Layout,
    Size,
    batch_of,
    chain_loss,
    layer_of,
    sequential_loss,
    training_step,
    weights,
)

FLOAT = 4  # bytes
ON_PAPER = tuple(2**k for k in range(11))  # devices
STRONG = Size(8192, 16, 32)
SHARD = 64  # layers on each device, for weak scaling
# What `deeppcr` takes for blocks of this width where rounds cost more than work.
SOLVER = "cyclic_reduction"


@dataclasses.dataclass(frozen=True)
class Machine:
    """Equal devices and their link.

    Attributes:
        device: the model of a device.
        link: between devices.
        cores: number of cores that simulated devices share, with a kernel on each. None: real
            devices.
    """

    device: depth.Device
    link: Link
    cores: int | None = None

    @property
    def said(self) -> str:
        """The machine in a line."""
        link = self.link
        rate = f"{1e-9 * link.bandwidth:.3g} GB/s, {link.source}"
        message = f"a message {1e6 * link.latency:.3g} us + bytes / {rate}"
        crowd = "" if self.cores is None else f"; devices share {self.cores} cores"
        return f"predicted with {self.device.name}; {message}{crowd}"

    def crowd(self, count: int) -> float:
        """How many times longer one of ``count`` devices takes to compute than if it were alone."""
        return 1.0 if self.cores is None else max(1.0, count / self.cores)


def sequential(size: Size, device: depth.Device) -> float:
    """Seconds of a step by `jax.lax.scan` on one device."""
    return depth.predict(sequential_cost(size), device)


def over_the_batch(size: Size, count: int, machine: Machine) -> float | None:
    """Seconds of a step with the batch over the devices; None for more devices than samples.

    With one all-reduce of all gradients at the end, which takes a `jax.shard_map`: otherwise the
    compiler sums those of each layer in its trip of the loop, at L times the latency.
    """
    if count > size.batch:
        return None
    share = dataclasses.replace(size, batch=size.batch // count)
    computed = machine.crowd(count) * sequential(share, machine.device)
    return computed + machine.link.all_reduce(_slopes(size), count)


def over_the_chain(
    size: Size, layout: Layout, machine: Machine, iterations: int
) -> tuple[float, float]:
    """Seconds that a device computes, and that it waits for messages.

    Args:
        size: of the stack.
        layout: of the program, with a method of deeppcr.
        machine: the devices.
        iterations: Newton iterations of the step.
    """
    count, link, device = layout.chain, machine.link, machine.device
    whole = dataclasses.replace(size, batch=size.batch // layout.batch)
    shard = dataclasses.replace(whole, length=size.length // count)
    newton = layout.method == "newton"
    computed = depth.predict(parallel_cost(shard, iterations if newton else None), device)
    sent = link.all_reduce(_slopes(shard), layout.batch)
    waiting = 0.0
    if count > 1:
        solves = iterations + 1 if newton else 1
        computed += solves * (_solve(shard, count, device) - _solve(shard, 1, device))
        state = FLOAT * whole.batch * size.width
        step = link.message(state, 1)

        def rounds(nbytes: float) -> float:
            return sum(link.message(nbytes, distance) for distance in distances(count))

        sent += solves * (rounds(state * (size.width + 1)) + step) + rounds(state)
        if newton:
            sent += iterations * (step + 2 * rounds(FLOAT))
        else:  # for the layers of all others
            waiting = _forward(whole, device) - _forward(shard, device)
            sent += (count - 1) * step
    return machine.crowd(layout.devices) * computed + machine.crowd(layout.batch) * waiting, sent


def _slopes(size: Size) -> float:
    """Bytes of the weights of all layers."""
    return FLOAT * size.length * (size.width**2 + size.width)


@cache
def sequential_cost(size: Size) -> depth.Cost:
    """A training step by `jax.lax.scan`."""
    return depth.analyze(training_step(sequential_loss(size)), *_shapes(size))


@cache
def parallel_cost(size: Size, iterations: int | None) -> depth.Cost:
    """A training step of one device; layer by layer, where there are no Newton iterations."""
    chain = deeppcr.Chain(layer_of(size), _shapes(size)[0])
    # Without the sequential fallback, which is not taken.
    method = (
        "sequential" if iterations is None else deeppcr.Newton(linear=SOLVER, on_failure="return")
    )
    step = training_step(chain_loss(chain, method=method, adjoint=SOLVER))
    return analyze(step, *_shapes(size), trips=iterations)


@cache
def _forward_cost(size: Size) -> depth.Cost:
    layers, (z, targets) = _shapes(size)
    loss = chain_loss(deeppcr.Chain(layer_of(size), layers), method="sequential")
    return depth.analyze(loss, layers, z, targets)


def _forward(size: Size, device: depth.Device) -> float:
    return depth.predict(_forward_cost(size), device)


@cache
def _solve_cost(shard: Size, count: int) -> depth.Cost:
    mesh = AbstractMesh((count,), ("chain",), axis_types=(AxisType.Auto,))
    shape = (shard.length * count, shard.batch, shard.width, shard.width)
    A, b = (jax.ShapeDtypeStruct(of, jnp.float32) for of in (shape, shape[:-1]))
    solver = deeppcr.Sharded(mesh, "chain", SOLVER)
    return analyze(lambda A, b: deeppcr.solve_bidiagonal(A, b, solver=solver), A, b)


def _solve(shard: Size, count: int, device: depth.Device) -> float:
    """Seconds that one of ``count`` devices computes for a linear recurrence of their shards."""
    # `depth.predict` counts what every device of a `jax.shard_map` does one after another, as it
    # does their work.
    return (depth.predict(_solve_cost(shard, count), device) - device.call_latency) / count


def _shapes(size: Size) -> tuple[dict[str, Any], tuple[Any, Any]]:
    one = weights(dataclasses.replace(size, length=1))  # which is quickly drawn
    layers = {
        name: jax.ShapeDtypeStruct((size.length, *x.shape[1:]), x.dtype) for name, x in one.items()
    }
    return layers, jax.eval_shape(lambda: batch_of(size))


def paper_rows(name: str, iterations: int, quick: bool) -> Iterator[Row]:
    """A device model, strong and weak scaling, 1 to 1024 devices.

    Args:
        name: one of `LINKS`.
        iterations: Newton iterations of a training step.
        quick: only 1, 32 and 1024 devices.
    """
    machine = Machine(depth.devices[name], LINKS[name])
    for kind in ("strong", "weak"):
        for count in ON_PAPER[:: 5 if quick else 1]:
            length = STRONG.length if kind == "strong" else SHARD * count
            size = dataclasses.replace(STRONG, length=length)
            one, over_batch = sequential(size, machine.device), over_the_batch(size, count, machine)
            computed, sent = over_the_chain(size, Layout(chain=count), machine, iterations)
            depths = sequential_cost(size).depth, parallel_cost(size, iterations).depth
            yield {
                "on paper": name,
                "scaling": kind,
                "devices": count,
                "L": size.length,
                "sequential depth": depths[0],
                "depth": depths[1],
                "depth speedup": depths[0] / depths[1],
                "lax.scan ms": 1e3 * one,
                **({} if over_batch is None else {"batch ms": 1e3 * over_batch}),
                "predicted ms": 1e3 * (computed + sent),
                "of it messages": 1e3 * sent,
                "predicted speedup": one / (computed + sent),
                "parameter MB": 1e-6 * _slopes(size) / count,
                "block MB": 1e-6 * FLOAT * size.length * size.batch * size.width**2 / count,
            }
