"""What a training step of a stack should take over its chain, on devices of a kind that are linked in some way.

By Newton's method it takes

    T(L/P) + (k + 1) (S(L/P, P) - S(L/P, 1) + messages) + k tests + the last state,

where T is the step of one device with L/P layers, k Newton iterations and one adjoint, and S(., P) is what one of P devices
computes of a linear recurrence, all as `depth.predict` says of the programs themselves. Messages are those of
`deeppcr.linear.sharded`: log2(P) times a block and a vector for each example, then a vector; a test of convergence is a state
from the neighbour and two numbers of all devices. Where the layers are run one by one, device after device, and only the adjoint
is solved in parallel, it takes

    T'(L/P) + F(L) - F(L/P) + (S(L/P, P) - S(L/P, 1) + messages) + P - 1 states + the last state,

where T' is the step of one device that runs its L/P layers so, and F the forward pass.
"""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

import deeppcr
import depth
from experiments.common.costs import analyze, further
from experiments.sharding_rows.links import Link, distances
from experiments.sharding_rows.stack import (
    Layout,
    Size,
    chain_loss,
    examples,
    layer_of,
    sequential_loss,
    training_step,
    weights,
)

FLOAT = 4  # bytes
SOLVER = "cyclic_reduction"  # what `deeppcr` takes for blocks of this width where rounds cost more than work


@dataclasses.dataclass(frozen=True)
class Machine:
    """Devices that are alike, and what connects them.

    Attributes:
        device: the model of one.
        link: what connects them.
        cores: of the machine that simulated devices share: of kernels as small as these, each device runs one on a core. None:
            every device is one of its own.
    """

    device: depth.Device
    link: Link
    cores: int | None = None

    @property
    def said(self) -> str:
        """What predictions are made with, in words."""
        link = self.link
        message = f"a message {1e6 * link.latency:.3g} us + bytes / {1e-9 * link.bandwidth:.3g} GB/s, {link.source}"
        crowd = "" if self.cores is None else f"; devices share {self.cores} cores"
        return f"predicted with {self.device.name}; {message}{crowd}"

    def crowd(self, count: int) -> float:
        """How many times longer one of ``count`` devices takes to compute than if it were alone."""
        return 1.0 if self.cores is None else max(1.0, count / self.cores)


def sequential(size: Size, device: depth.Device) -> float:
    """Seconds of a step by `jax.lax.scan` on one device."""
    return depth.predict(sequential_cost(size), device)


def over_the_batch(size: Size, count: int, machine: Machine) -> float | None:
    """Seconds of a step with the batch over the devices; None for more devices than examples.

    With one all-reduce of all slopes at the end, which takes a `jax.shard_map`: left to itself the compiler sums every layer's
    in its turn of the loop, which costs L times the latency.
    """
    if count > size.batch:
        return None
    share = dataclasses.replace(size, batch=size.batch // count)
    return machine.crowd(count) * sequential(share, machine.device) + machine.link.all_reduce(
        _slopes(size), count
    )


def over_the_chain(size: Size, layout: Layout, machine: Machine, turns: int) -> tuple[float, float]:
    """Seconds that a device computes, and that it waits for messages.

    Args:
        size: of the stack.
        layout: what lies where; its method is one of deeppcr's.
        machine: the devices.
        turns: how many Newton iterations the step takes.
    """
    count, link, device = layout.chain, machine.link, machine.device
    whole = dataclasses.replace(size, batch=size.batch // layout.batch)
    part = dataclasses.replace(whole, length=size.length // count)
    newton = layout.method == "newton"
    computed = depth.predict(parallel_cost(part, turns if newton else None), device)
    sent = link.all_reduce(_slopes(part), layout.batch)
    waiting = 0.0
    if count > 1:
        solves = turns + 1 if newton else 1
        computed += solves * (_solve(part, count, device) - _solve(part, 1, device))
        state = FLOAT * whole.batch * size.width
        step = link.message(state, 1)
        rounds = sum(
            link.message(state * (size.width + 1), distance) for distance in distances(count)
        )
        sent += solves * (rounds + step) + sum(
            link.message(state, distance) for distance in distances(count)
        )
        if newton:
            sent += turns * (
                step + 2 * sum(link.message(FLOAT, distance) for distance in distances(count))
            )
        else:  # until the layers of all others have been run
            waiting = _forward(whole, device) - _forward(part, device)
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
def parallel_cost(size: Size, turns: int | None) -> depth.Cost:
    """A training step of one device; layer by layer, where there are no Newton iterations."""
    chain = deeppcr.Chain(layer_of(size), _shapes(size)[0])
    # Without the rescue, a branch that is not taken.
    method = "sequential" if turns is None else deeppcr.Newton(linear=SOLVER, on_failure="return")
    step = training_step(chain_loss(chain, method=method, adjoint=SOLVER))
    return analyze(step, *_shapes(size), turns=counted(turns))


def counted(turns: int | None) -> int | None:
    """`further`, where there are iterations."""
    return None if turns is None else further(turns)


@cache
def _forward_cost(size: Size) -> depth.Cost:
    layers, (z, targets) = _shapes(size)
    return depth.analyze(
        chain_loss(deeppcr.Chain(layer_of(size), layers), method="sequential"), layers, z, targets
    )


def _forward(size: Size, device: depth.Device) -> float:
    return depth.predict(_forward_cost(size), device)


@cache
def _solve_cost(part: Size, count: int) -> depth.Cost:
    mesh = AbstractMesh((count,), ("chain",), axis_types=(AxisType.Auto,))
    A = jax.ShapeDtypeStruct((part.length * count, part.batch, part.width, part.width), jnp.float32)
    b = jax.ShapeDtypeStruct(A.shape[:-1], jnp.float32)
    return analyze(
        lambda A, b: deeppcr.solve_bidiagonal(A, b, solver=deeppcr.Sharded(mesh, "chain", SOLVER)),
        A,
        b,
    )


def _solve(part: Size, count: int, device: depth.Device) -> float:
    """Seconds that one of ``count`` devices computes for a linear recurrence with ``part`` of its steps on each."""
    # `depth.predict` counts what every device of a `jax.shard_map` does one after another, as it does their work.
    return (depth.predict(_solve_cost(part, count), device) - device.call_latency) / count


def _shapes(
    size: Size,
) -> tuple[dict[str, jax.ShapeDtypeStruct], tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]]:
    one = dataclasses.replace(size, length=1)  # whose weights are quickly drawn
    wanted = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (weights(one), examples(size))
    )
    return {
        key: jax.ShapeDtypeStruct((size.length, *x.shape[1:]), x.dtype)
        for key, x in wanted[0].items()
    }, wanted[1]
