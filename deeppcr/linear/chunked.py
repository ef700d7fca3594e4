"""Sequential inside chunks, side by side, and another solver across them: depth 2 L/K + depth across.

Cut the chain into K chunks. Within a chunk that starts after state s, every state is an affine function of s,

    y_l = P_l s + v_l,    P_l = A_l P_{l-1},  v_l = A_l v_{l-1} + b_l,    P = I, v = 0 at the start.

1. Step all chunks at once through their L/K steps, for the last P and v of each.
2. They make a recurrence of K steps for the ends of chunks, ``s_k = P_k s_{k-1} + v_k``: for another solver.
3. Step all chunks at once again, each from its true start, with products of a block and a vector only.

That is fewer than L block products, as in cyclic reduction, but every one is taken where it lies: nothing is
copied and the working set is one block a chunk. The chunk is also what one device holds of a sharded chain.

Source: Hockney & Jesshope, *Parallel Computers 2*, section 5.4 (partition method, H. H. Wang 1981).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.recurrence import Recurrence
from deeppcr.linear.solver import LinearSolver

MEDIUM, WIDE = 8, 32


@dataclasses.dataclass(frozen=True)
class Chunked(LinearSolver):
    """Chunks of ``size`` steps (None: see `default_chunks`); ``across`` solves for their ends."""

    size: int | None = None
    across: LinearSolver = Recurrence()

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(
                f"size is {self.size}, expected the steps of a chunk, at least 1, or None."
            )

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        length, along = blocks.length, Along(reverse=reverse)
        size = self.size or max(1, length // default_chunks(blocks))
        whole = length - length % size
        if whole < 2 * size:
            return Recurrence()._solve(blocks, b, reverse)
        y = self._solve_whole(along.first(blocks, whole), along.first(b, whole), size, reverse)
        if whole == length:
            return y
        # What is left over at the end of the chain is one more, shorter chunk, after all others.
        rest, b_rest = along.last((blocks, b), length - whole)
        b_first = along.first(b_rest, 1) + along.first(rest, 1).apply(along.last(y, 1))
        b_rest = along.join(b_first, along.last(b_rest, length - whole - 1))
        return along.join(y, Recurrence()._solve(rest, b_rest, reverse))

    def _solve_whole(self, blocks: Blocks, b: Array, size: int, reverse: bool) -> Array:
        blocks, b, restore = blocks.lay_out(b)
        # One step of all chunks is again blocks and a vector, over the chain of chunks: `along` them.
        # `inside` the chunks, blocks that were laid out anew may as well have their steps one after another;
        # the others stay where they are, and a step is picked from every chunk.
        along = Along(blocks.axis, reverse)
        inside = Along(blocks.axis + 1 if blocks.axis == 0 else blocks.axis, reverse)
        chunks = blocks.length // size
        steps = jax.tree.map(lambda leaf: _split(leaf, size, along.axis, inside.axis), (blocks, b))
        first = size - 1 if reverse else 0
        rest = Along(reverse=reverse).last(jnp.arange(size), size - 1)

        def without_last(tree: tuple[Blocks, Array]) -> tuple[Blocks, Array]:
            return along.first(tree, chunks - 1)  # nobody asks where the last chunk ends

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
        not_needed = jax.tree.map(jnp.zeros_like, along.first(block, 1))
        ends = self.across.solve_unguarded(
            jax.tree.map(along.join, not_needed, product), offset, reverse
        )

        starts = along.join(jnp.zeros_like(along.first(offset, 1)), ends)
        y_first = along.clear_first(first_block.apply(starts)) + first_b
        _, y_rest = lax.scan(fill_in, y_first, rest, reverse=reverse)
        return restore(_merge(Along(reverse=reverse).join(y_first[None], y_rest), along.axis))


def default_chunks(blocks: Blocks) -> int:
    """How many chunks, measured on 2 CPU cores.

    The first and the last chunk need no block products, so few chunks save work, K - 2 of K; many chunks save
    steps of the loop. For wide blocks the products are most of the time: with 4, 8, 16 chunks, 8192 steps of
    64x64 blocks take 73, 78, 97 ms. With 8, 16, 32 chunks, 1024 steps of 8x8 blocks take 0.25, 0.22, 0.21 ms,
    and 4096 steps of 2x2 blocks 0.06, 0.13, 0.20 ms.
    """
    if blocks.coupled < MEDIUM:
        return 16
    return 32 if blocks.coupled < WIDE else 4


def _split(leaf: Array, size: int, axis: int, inside: int) -> Array:
    """``[.., chunks * size, ..]`` to chunks on ``axis`` with their steps beside them, on axis ``inside``."""
    leaf = leaf.reshape(*leaf.shape[:axis], -1, size, *leaf.shape[axis + 1 :])
    return jnp.moveaxis(leaf, axis + 1, inside)


def _merge(leaf: Array, axis: int) -> Array:
    """``[size, .., chunks, ..]`` to ``[.., chunks * size, ..]``."""
    leaf = jnp.moveaxis(leaf, 0, axis + 1)
    return leaf.reshape(*leaf.shape[:axis], -1, *leaf.shape[axis + 2 :])
