"""The two kernels of an iteration of Newton's method on a chain that is cut into chunks.

Each thread runs through one chunk. At a step it applies the linearisation of the last iterate,
evaluates and linearises the step at the new state, and composes what the *next* iteration will make
of a change d of the state that enters the chunk:

    y_l = v_l + J_l (y_{l-1} - z_{l-1})                            z, v, J: the iterate before
    v'_l = f(y_{l-1}, x_l),   J'_l = df/dz(y_{l-1}, x_l)
    d_l = P_l d + m_l,   P_l = J'_l P_{l-1},   m_l = J'_l m_{l-1} + v'_l - y_l,   P_0 = I, m_0 = 0

Then the second kernel goes from chunk to chunk, for the states that enter them. Changes are
composed, and not states, because they vanish at the solution, and with them the rounding errors of
P.

What an iterate keeps are the states *before* each step. So a chunk needs nothing of another one,
and the state that enters it is also the one after the chunk before. Arrays have the chunks on the
last axis, so that neighbouring threads read neighbouring numbers.

Where something overflows, the state is what the step makes of the state before: at least one more
state is right after each iteration.

Source: Hockney & Jesshope, *Parallel Computers 2*, section 5.4 (partition method, H. H. Wang 1981),
with the nonlinear step inside.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.avals import abstract
from deeppcr.axis import ChunkedAxis
from deeppcr.chain import TracedChain
from deeppcr.fused import FusedStep
from deeppcr.fused.step import LANES
from deeppcr.linear import Matrices
from deeppcr.linearize.jacobian import matrices
from deeppcr.state import Leaves
from depth.jaxprs import Program


class Summary(NamedTuple):
    """What the next iteration makes of the state that enters a chunk.

    Attributes:
        reached: ``[*batch, w, chunks]``, the last state of each chunk, as the chunk computes it.
        product: ``[*batch, w, w, chunks]``, P.
        offset: ``[*batch, w, chunks]``, m.
    """

    reached: Array
    product: Array
    offset: Array


def cut(chain: TracedChain) -> ChunkedAxis:
    """How a chain is cut into chunks."""
    # The time of an iteration is that of all steps of a chunk, and of all chunks. A step of the
    # first kernel takes about ten times as long as one of the second, by their operations.
    chunks = LANES * max(1, round(3 * math.sqrt(chain.length) / LANES))
    return ChunkedAxis(length=chain.length, chunks=chunks)


def to_front(x: Array, axis: int = 0) -> Array:
    """An array with the chunks on ``axis`` instead of the last."""
    return jnp.moveaxis(x, -1, axis)


def to_back(x: Array) -> Array:
    """An array with the chunks on the last axis instead of the first."""
    return jnp.moveaxis(x, 0, -1)


def step_of_pass(chain: TracedChain, axis: ChunkedAxis) -> FusedStep:
    """A step of the first kernel, for all chunks.

    Its state is a `Summary`. Its inputs are the state before the step, the step applied to it, and
    its Jacobian, of the iterate before; whether the step is one of the chain, int32; and the input
    of the chain. Its outputs are the first three, of the new iterate, and the change of the first.

    Raises:
        CannotFuse: it has no kernel; the message says why.
    """

    def step(summary: list[Array], inputs: Leaves, captured: Leaves) -> list[Array]:
        state, product, offset = map(to_front, summary)
        old_state, old_value, old_jacobian, flag, *own = map(to_front, inputs)
        steps = dataclasses.replace(chain, length=axis.chunks, inputs=own, captured=captured)
        is_own = flag.reshape((-1, *(1,) * (state.ndim - 1))) != 0
        value = jnp.where(is_own, steps.evaluate(state), state)
        jacobian = jnp.where(is_own[..., None], matrices(steps, state), 0)
        after = old_value + Matrices(old_jacobian).apply(state - old_state)
        after = jnp.where(jnp.isfinite(old_value), finite_or(after, old_value), old_state)
        offset = Matrices(jacobian).apply(offset) + (value - after)
        product = Matrices(jacobian).compose(Matrices(product)).matrix
        outputs = state, value, jacobian, state - old_state
        return [to_back(x) for x in (after, product, offset, *outputs)]

    vector, matrix = shapes(chain, axis)
    flag = abstract(vector, (axis.chunks,), jnp.int32)
    own = [abstract(x, (*x.shape[1:], axis.chunks)) for x in chain.inputs]
    inputs = [vector, vector, matrix, flag, *own]
    closed = jax.make_jaxpr(step)([vector, matrix, vector], inputs, list(chain.captured))
    program, given = Program.of(closed), 3 + len(inputs)
    constants = [*program.invars[given:], *program.constvars]
    program = program._replace(invars=program.invars[:given], constvars=constants)
    found = FusedStep.of(program, 3, len(inputs), chain.layout.batch_shape, axis.chunks)
    return dataclasses.replace(found, in_place=3)


def step_of_chunks(chain: TracedChain, axis: ChunkedAxis) -> FusedStep:
    """A step of the second kernel: a chunk.

    Its state, which is its output, is the state that enters the chunk. Its inputs are that of the
    iterate before, and a `Summary`.

    Raises:
        CannotFuse: it has no kernel; the message says why.
    """

    def step(state: Array, old: Array, *summary: Array) -> tuple[Array, Array]:
        reached, product, offset = summary
        after = reached + (offset + Matrices(product).apply(state - old))
        return finite_or(after, reached), state

    vector, matrix = (abstract(x, x.shape[:-1]) for x in shapes(chain, axis))
    program = Program.of(jax.make_jaxpr(step)(vector, vector, vector, matrix, vector))
    found = FusedStep.of(program, 1, 4, chain.layout.batch_shape)
    return dataclasses.replace(found, steps_last=True)


def shapes(chain: TracedChain, axis: ChunkedAxis) -> tuple[Any, Any]:
    """The shapes of a vector and of a matrix for each chunk."""
    layout, state = chain.layout, chain.initial[0]
    vector = *layout.batch_shape, layout.width, axis.chunks
    matrix = *layout.batch_shape, layout.width, layout.width, axis.chunks
    return abstract(state, vector, layout.dtype), abstract(state, matrix, layout.dtype)


def finite_or(states: Array, others: Array) -> Array:
    """Entry by entry, the state if it is finite, else the other."""
    return jnp.where(jnp.isfinite(states), states, others)
