"""Chunks in parallel, each sequentially; another solver joins them: depth 2 L/K + that solver's.

Cut the chain into K chunks. Within a chunk that starts after state s, every state is an affine
function of s,

    y_l = P_l s + v_l,    P_l = A_l P_{l-1},  v_l = A_l v_{l-1} + b_l,    P = I, v = 0 at the start.

1. Run all chunks at once through their L/K steps, for the last P and v of each.
2. The ends of the chunks are a recurrence of K steps, ``s_k = P_k s_{k-1} + v_k``, for another
   solver.
3. Run all chunks at once again, each from its true start. That takes only products of a block and
   a vector.

Like cyclic reduction it takes fewer than L block products. Yet nothing is copied, and the working
set is one block per chunk. A shard of the chain is such a chunk, too.

Source: Hockney & Jesshope, *Parallel Computers 2*, section 5.4 (partition method, H. H. Wang 1981).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.solver import LinearSolver, Recurrence

MEDIUM, WIDE = 8, 32


@dataclasses.dataclass(frozen=True)
class Chunked(LinearSolver):
    """Solve the recurrence in chunks: sequential within a chunk, all chunks in parallel.

    Work O(L), depth 2 ``size`` plus that of ``across``, fewer than L block products, and no copies
    of the blocks.

    Attributes:
        size: integer >= 1, the steps of a chunk. None: 16 chunks for blocks of fewer than 8
            entries, 32 for fewer than 32, else 4.
        across: the solver of the recurrence over the ends of the chunks.

    Raises:
        ValueError: ``size`` is less than 1.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.Chunked(size=10))[-1]
        Array([2.], dtype=float32)

    References:
        R. W. Hockney, C. R. Jesshope, *Parallel Computers 2*, 1988, section 5.4; H. H. Wang, ACM
        Transactions on Mathematical Software 7, 1981.
    """

    size: int | None = None
    across: LinearSolver = Recurrence()

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(
                f"size is {self.size}, expected None or an integer >= 1 (steps of a chunk)."
            )

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        length = blocks.length
        size = self.size or max(1, length // default_chunks(blocks))
        if length < 2 * size:
            return Recurrence()._solve(blocks, b, reverse)
        if size == 1:
            return self.across.solve_unguarded(blocks, b, reverse)
        blocks, b = Along(reverse=reverse).padded((blocks, b), -length % size)
        y = self._solve_whole(blocks, b, size, reverse)
        return Along(reverse=reverse).first(y, length)

    def _solve_whole(self, blocks: Blocks, b: Array, size: int, reverse: bool) -> Array:
        """`_solve` of a whole number of chunks."""
        blocks, b, restore = blocks.to_struct_of_arrays(b)
        # One step of all chunks is blocks and a vector over the chain of chunks: `along` indexes
        # the chunks, `inside` the steps of a chunk. A structure of arrays is a copy anyway, so its
        # steps are made contiguous. Other arrays are not copied; a step is a strided slice.
        along = Along(blocks.axis, reverse)
        inside = Along(blocks.axis + 1 if blocks.axis == 0 else blocks.axis, reverse)
        chunks = blocks.length // size
        steps = jax.tree.map(lambda leaf: _split(leaf, size, along.axis, inside.axis), (blocks, b))
        first = size - 1 if reverse else 0
        rest = Along(reverse=reverse).last(jnp.arange(size), size - 1)

        def without_last(tree: tuple[Blocks, Array]) -> tuple[Blocks, Array]:
            return along.first(tree, chunks - 1)  # the end of the last chunk is not needed

        def without_first(blocks: Blocks) -> Blocks:
            return along.last(blocks, chunks - 2)  # it starts at zero: its product is not needed

        def reduce(ends: tuple[Blocks, Array], index: Array) -> tuple[tuple[Blocks, Array], None]:
            product, offset = ends
            block, b_l = without_last(inside.step(steps, index))
            return (without_first(block).compose(product), block.apply(offset) + b_l), None

        def fill_in(y: Array, index: Array) -> tuple[Array, Array]:
            block, b_l = inside.step(steps, index)
            y = block.apply(y) + b_l
            return y, y

        first_block, first_b = inside.step(steps, first)
        block, offset = without_last((first_block, first_b))
        (product, offset), _ = lax.scan(
            reduce, (without_first(block), offset), rest, reverse=reverse
        )
        unused = jax.tree.map(jnp.zeros_like, along.first(block, 1))
        ends = self.across.solve_unguarded(
            jax.tree.map(along.join, unused, product), offset, reverse
        )

        starts = along.join(jnp.zeros_like(along.first(offset, 1)), ends)
        y_first = along.clear_first(first_block.apply(starts)) + first_b
        _, y_rest = lax.scan(fill_in, y_first, rest, reverse=reverse)
        return restore(_merge(Along(reverse=reverse).join(y_first[None], y_rest), along.axis))


def default_chunks(blocks: Blocks) -> int:
    """The number of chunks.

    The first and the last of the K chunks need no block products, so few chunks save work. Many
    chunks save trips of the loop.
    """
    # For wide blocks the products are most of the time: for 64x64 blocks 16 chunks take 1.3 times
    # as long as 4. For 8x8 blocks 8 chunks take 1.2 times as long as 32, but for 2x2 blocks 32
    # chunks take 3 times as long as 8 (jax 0.10.2, 2 cores).
    if blocks.block_size < MEDIUM:
        return 16
    return 32 if blocks.block_size < WIDE else 4


def _split(leaf: Array, size: int, axis: int, inside: int) -> Array:
    """``[.., chunks * size, ..]`` to chunks on ``axis`` with their steps on axis ``inside``."""
    leaf = leaf.reshape(*leaf.shape[:axis], -1, size, *leaf.shape[axis + 1 :])
    return jnp.moveaxis(leaf, axis + 1, inside)


def _merge(leaf: Array, axis: int) -> Array:
    """``[size, .., chunks, ..]`` to ``[.., chunks * size, ..]``."""
    leaf = jnp.moveaxis(leaf, 0, axis + 1)
    return leaf.reshape(*leaf.shape[:axis], -1, *leaf.shape[axis + 2 :])
