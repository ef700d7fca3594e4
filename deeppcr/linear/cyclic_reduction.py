"""Cyclic reduction: work O(L), depth O(log L), the fewest block products.

Substituting every other equation into its successor leaves a recurrence of half the length for the odd steps
alone (counted from 0),

    y_{2i+1} = (A_{2i+1} A_{2i}) y_{2i-1} + (A_{2i+1} b_{2i} + b_{2i+1}),

which is solved in the same way; then the even steps follow from their predecessors by products of a block
with a vector, ``y_{2i} = A_{2i} y_{2i-1} + b_{2i}``. That is L/2 + L/4 + ... < L block products in all, half
of what a prefix scan needs, because composed blocks of the even steps are never formed.

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
    """Halve the chain, solve it, and fill in the other half."""

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.lay_out(b)
        return restore(_reduce(blocks, b, Along(blocks.axis, reverse)))


def _reduce(blocks: Blocks, b: Array, along: Along) -> Array:
    if along.length(b) == 1:
        return b
    (blocks_even, blocks_odd), (b_even, b_odd) = along.halves(blocks), along.halves(b)
    pairs = along.length(
        b_odd
    )  # if the length is odd, one less than the even steps: the last has no successor
    offsets = blocks_odd.apply(along.first(b_even, pairs)) + b_odd
    y_odd = _reduce(blocks_odd.compose(along.first(blocks_even, pairs)), offsets, along)

    nothing = jnp.zeros_like(along.first(b_even, 1))
    before = along.first(along.join(nothing, y_odd), along.length(b_even))
    y_even = along.clear_first(blocks_even.apply(before)) + b_even
    return along.interleave(y_even, y_odd)
