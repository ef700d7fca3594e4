"""The linear recurrence as a prefix scan: work O(L), depth O(log L).

Step l is the affine map ``y -> A_l y + b_l``. The composition of two affine maps,

    (A, b) after (A', b') = (A A', A b' + b),

is associative, as composition of maps always is. ``y_l`` is the offset of the first l maps
composed, so `jax.lax.associative_scan` with this operator solves the recurrence. It forms all L
composed blocks although only the offsets are needed: about twice the products of `CyclicReduction`,
which is otherwise the same algorithm.

Source: Blelloch, *Prefix Sums and Their Applications*, 1990, section 1.4.
"""

import dataclasses

from jax import Array, lax

from deeppcr.linear.blocks import Blocks
from deeppcr.linear.solver import LinearSolver


@dataclasses.dataclass(frozen=True)
class PrefixScan(LinearSolver):
    """`jax.lax.associative_scan` over pairs of block and offset.

    Work O(L), depth $2 log_2 L$, about 2 L block products.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.PrefixScan())[-1]
        Array([2.], dtype=float32)

    References:
        G. E. Blelloch, *Prefix Sums and Their Applications*, 1990, section 1.4.
    """

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.to_struct_of_arrays(b)
        _, y = lax.associative_scan(_compose, (blocks, b), reverse=reverse, axis=blocks.axis)
        return restore(y)


def _compose(earlier: tuple[Blocks, Array], later: tuple[Blocks, Array]) -> tuple[Blocks, Array]:
    first, first_offset = earlier
    second, second_offset = later
    return second.compose(first), second.apply(first_offset) + second_offset
