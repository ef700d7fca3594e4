"""The linear recurrence as a prefix scan: work O(L), depth O(log L).

Step l is the affine map ``y -> A_l y + b_l``, and the composition of two affine maps,

    (A, b) after (A', b') = (A A', A b' + b),

is associative because composition of maps is. ``y_l`` is the offset of the first l maps composed, so that
`jax.lax.associative_scan` with this operator solves the recurrence. It forms all L composed blocks although
only the offsets are wanted: about twice the products of `CyclicReduction`, from which it differs by nothing
else.

Source: Blelloch, *Prefix Sums and Their Applications*, 1990, section 1.4.
"""

import dataclasses

from jax import Array, lax

from deeppcr.linear.blocks import Blocks
from deeppcr.linear.solver import LinearSolver


@dataclasses.dataclass(frozen=True)
class PrefixScan(LinearSolver):
    """`jax.lax.associative_scan` over pairs of block and offset."""

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.lay_out(b)
        _, y = lax.associative_scan(_compose, (blocks, b), reverse=reverse, axis=blocks.axis)
        return restore(y)


def _compose(earlier: tuple[Blocks, Array], later: tuple[Blocks, Array]) -> tuple[Blocks, Array]:
    first, first_offset = earlier
    second, second_offset = later
    return second.compose(first), second.apply(first_offset) + second_offset
