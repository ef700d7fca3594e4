"""Cyclic reduction: work O(L), depth O(log L), the fewest block products.

Substituting every other equation into its successor leaves a recurrence of half the length for the
odd steps alone (counted from 0),

    y_{2i+1} = (A_{2i+1} A_{2i}) y_{2i-1} + (A_{2i+1} b_{2i} + b_{2i+1}),

which is solved in the same way. The even steps then follow from their predecessors,
``y_{2i} = A_{2i} y_{2i-1} + b_{2i}``, by products of a block and a vector. That takes
L/2 + L/4 + ... < L block products, half of those of a prefix scan, because the blocks of the even
steps are never composed.

Source: Hockney & Jesshope, *Parallel Computers 2*, section 5.4.2.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.solver import LinearSolver


@dataclasses.dataclass(frozen=True)
class CyclicReduction(LinearSolver):
    """Eliminate every other step, solve the recurrence of half the length, and substitute back.

    Work O(L), depth $2 log_2 L$, the fewest block products of the parallel solvers: fewer than L.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.CyclicReduction())[-1]
        Array([2.], dtype=float32)

    References:
        R. W. Hockney, Journal of the ACM 12, 1965; R. W. Hockney, C. R. Jesshope, *Parallel
        Computers 2*, 1988, section 5.4.2.
    """

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.to_struct_of_arrays(b)
        return restore(_reduce(blocks, b, Along(blocks.axis, reverse)))


def _reduce(blocks: Blocks, b: Array, along: Along) -> Array:
    if along.length(b) == 1:
        return b
    (blocks_even, blocks_odd), (b_even, b_odd) = along.halves(blocks), along.halves(b)
    # The last even step of a chain of odd length has no successor.
    pairs = along.length(b_odd)
    offsets = blocks_odd.apply(along.first(b_even, pairs)) + b_odd
    y_odd = _reduce(blocks_odd.compose(along.first(blocks_even, pairs)), offsets, along)

    zero = jnp.zeros_like(along.first(b_even, 1))
    before = along.first(along.join(zero, y_odd), along.length(b_even))
    y_even = along.clear_first(blocks_even.apply(before)) + b_even
    return along.interleave(y_even, y_odd)
