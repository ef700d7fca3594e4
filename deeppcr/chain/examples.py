"""A chain under `jax.vmap`: one chain whose states are those of all examples.

The examples become the first batch axis of the state. Inputs and captured arrays that the examples
share are not copied, so a gradient with respect to them is one sum over examples and steps.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deeppcr.arrays import Leaves, abstract, avals_of, of_step
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.chain.trace import on_no_mesh
from deeppcr.solution import Run
from depth.jaxprs import Program

Axes = Sequence[int | None]
"""The index of the axis of the examples in each leaf; None where they share it."""

OF_RUN: Any = Run(1, 1, 0, 0, 0, 0)  # type: ignore[arg-type]
"""The batch axes of a run: after the chain axis, and first in statistics."""


def at_front(leaves: Leaves, axes: Axes, index: int = 0) -> tuple[Leaves, tuple[int | None, ...]]:
    """The leaves with the examples on axis ``index``, and their new batch axes."""
    pairs = list(zip(leaves, axes, strict=True))
    in_front = [x if axis is None else jnp.moveaxis(x, axis, index) for x, axis in pairs]
    return in_front, tuple(None if axis is None else index for _, axis in pairs)


def chain_of_examples(
    chain: TracedChain, size: int, initial: Axes, inputs: Axes, captured: Axes
) -> tuple[TracedChain, tuple[int | None, ...]]:
    """The chain of ``size`` examples, whose arrays ``chain`` has on these axes.

    Returns:
        the chain, and where the examples are in its states ``[B, ...]``, inputs ``[L, B, ...]`` and
        captured arrays ``[B, ...]``.
    """
    states = [
        jnp.broadcast_to(z, (size, *z.shape)) if axis is None else jnp.moveaxis(z, axis, 0)
        for z, axis in zip(chain.initial, initial, strict=True)
    ]
    xs, of_inputs = at_front(chain.inputs, inputs, 1)
    shared, of_captured = at_front(chain.captured, captured)
    first = list(map(of_step, xs))
    axes = 0, [None if axis is None else 0 for axis in inputs], list(of_captured)
    mapped = jax.vmap(chain.step.with_outputs, axes, axis_size=size)
    with on_no_mesh():
        closed = jax.make_jaxpr(mapped)(states, first, shared)
    program, end = Program.of(closed), len(states) + len(first)
    program = program._replace(
        constvars=[*program.invars[end:], *program.constvars], invars=program.invars[:end]
    )
    many = dataclasses.replace(
        chain,
        step=dataclasses.replace(chain.step, jaxpr=program, example=chain.step),
        layout=dataclasses.replace(chain.layout, batch_shape=(size, *chain.layout.batch_shape)),
        initial=states,
        inputs=xs,
        captured=[*shared, *map(jnp.asarray, closed.consts)],
    )
    return many, (*[0] * len(states), *of_inputs, *of_captured)


def differing(step: Step, size: int, axes: Axes, name: Any = None) -> list[bool]:
    """Whether ``size`` examples differ in each leaf of the state, and in each output of a step.

    They do not in a learning rate, say, that nothing of an example reaches, nor in a mean over the
    mapped axis, which has this ``name``. ``axes``: those of the examples in the initial state, the
    inputs, the captured arrays, and more.
    """
    of_one = avals_of(step.variables)
    in_axes = [None if axis is None else 0 for axis in axes[: len(of_one)]]
    shapes = [
        abstract(aval, aval.shape if axis is None else (size, *aval.shape))
        for aval, axis in zip(of_one, in_axes, strict=True)
    ]
    differ: list[bool] = []

    def loop(state: Leaves, inputs: Leaves, captured: Leaves) -> tuple[Leaves, Leaves]:
        """A loop, in which what differs may reach further leaves in each step."""
        xs = [x[None] for x in inputs]
        last, outputs = lax.scan(lambda z, x: step.with_outputs(z, x, captured), state, xs, 1)
        differ[:] = [getattr(y, "batch_dim", None) is not None for y in (*last, *outputs)]
        return last, outputs

    mapped = jax.vmap(loop, step.separate(in_axes), axis_size=size, axis_name=name)
    with on_no_mesh():
        jax.make_jaxpr(mapped)(*step.separate(shapes))
    return differ
