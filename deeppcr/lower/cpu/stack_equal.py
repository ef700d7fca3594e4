"""Arrays of one shape and dtype as one array, where a loop writes them.

On a CPU, a loop writes every array by a kernel of its own, and XLA hands the kernels of a trip to
its threads if they are more than eight.
"""

# jax 0.10.2, 2 cores, a step of the adjoint of an LSTM: 0.4 of the time for states of 8 to 64
# entries, 0.8 for 128, no gain from 256 entries on.

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.in_order import Loop, Operands

MOST = 256  # entries of an array that is put into another


def results_stacked(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule, for the results of a loop of derivatives."""
    return stacked(loop, operands, of_x=False) if loop.linear else (loop, operands)


def stacked(loop: Loop, operands: Operands, of_x: bool) -> tuple[Loop, Operands]:
    """The loop that returns, and takes if ``of_x``, stacked arrays."""
    xs, ys = ([x.aval for x in variables] for variables in (loop.inputs, loop.outputs))

    def step(constants: Leaves, carry: Leaves, x: Leaves) -> Leaves:
        found = loop.evaluated(constants, carry, from_split(x, xs) if of_x else x)
        return [*found[: loop.states], *stack_equal(found[loop.states :], ys)]

    inputs = jax.eval_shape(lambda x: stack_equal(x, xs), xs) if of_x else None
    new, operands = loop.retraced(operands, step, inputs)
    after = lambda arrays: loop.after(from_split(arrays, ys, 1))  # noqa: E731
    before = (lambda x: stack_equal(loop.before(x), xs, 1)) if of_x else loop.before
    return new._replace(before=before, after=after), operands


def stack_equal(arrays: Sequence[Array], like: Sequence[Any], axis: int = 0) -> list[Array]:
    """Those whose ``like`` are of one shape and dtype stacked on a new ``axis``, and all others."""
    return [
        arrays[group[0]] if len(group) == 1 else jnp.stack([arrays[i] for i in group], axis)
        for group in _group_by_type(like)
    ]


def from_split(arrays: Sequence[Array], like: Sequence[Any], axis: int = 0) -> list[Array]:
    """What `stack_equal` has stacked."""
    found = {}
    for array, group in zip(arrays, _group_by_type(like), strict=True):
        for k, i in enumerate(group):
            found[i] = array if len(group) == 1 else lax.index_in_dim(array, k, axis, False)
    return [found[i] for i in range(len(like))]


def _group_by_type(arrays: Sequence[Any]) -> list[list[int]]:
    """The indices of arrays that belong together."""
    found: dict[object, list[int]] = {}
    for i, x in enumerate(arrays):
        is_small = math.prod(x.shape) <= MOST
        found.setdefault((x.shape, x.dtype) if is_small else i, []).append(i)
    return list(found.values())
