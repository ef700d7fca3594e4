"""Arrays of one shape and dtype as one array, where a loop writes them.

On a CPU, a loop writes every array by a kernel of its own, and XLA hands the kernels of a trip to
its threads if they are more than eight. So the loop of a derivative writes its small results as
one array for each shape and dtype, which is split after the loop.
"""

# jax 0.10.2, 2 cores, a step of the adjoint of an LSTM: 0.4 of the time for states of 8 to 64
# entries, 0.8 for 128, no gain from 256 entries on.

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.cpu import limits
from deeppcr.lower.in_order import Loop, Operands
from depth.jaxprs import bind, interpret


def results_stacked(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule, for the results of a loop of derivatives."""
    ys = [x.aval for x in loop.outputs]
    if not loop.kind.linear or len(_group_by_type(ys)) == len(ys):
        return loop, operands

    def step(read: Leaves) -> Leaves:
        results = interpret(loop.program, loop.known(read), loop.program.outvars, bind)
        return [*results[: loop.states], *stack_equal(results[loop.states :], ys)]

    new, operands = loop.retraced(operands, step)
    return new._replace(after=lambda arrays: loop.after(from_split(arrays, ys, 1))), operands


def stack_equal(arrays: Sequence[Array], like: Sequence[Any], axis: int = 0) -> list[Array]:
    """Those whose ``like`` are of one shape and dtype stacked on a new ``axis``, and all others."""
    # On axis 0 first: XLA takes 3 times as long to compile a concatenation of 420 columns as one of
    # rows and its transpose (jax 0.10.2).
    stacked = []
    for group in _group_by_type(like):
        members = [arrays[i] for i in group]
        is_one = len(members) == 1
        stacked.append(members[0] if is_one else jnp.moveaxis(jnp.stack(members), 0, axis))
    return stacked


def from_split(arrays: Sequence[Array], like: Sequence[Any], axis: int = 0) -> list[Array]:
    """What `stack_equal` has stacked."""
    separate = dict[int, Array]()
    for array, group in zip(arrays, _group_by_type(like), strict=True):
        rows = [array]
        if len(group) > 1:
            rows = [lax.squeeze(row, [axis]) for row in lax.split(array, [1] * len(group), axis)]
        separate |= zip(group, rows, strict=True)
    return [separate[i] for i in range(len(like))]


def _group_by_type(arrays: Sequence[Any]) -> list[list[int]]:
    """The indices of arrays that belong together."""
    groups: dict[object, list[int]] = {}
    for i, x in enumerate(arrays):
        is_small = math.prod(x.shape) <= limits.MAX_STACKED
        groups.setdefault((x.shape, x.dtype) if is_small else i, []).append(i)
    return list(groups.values())
