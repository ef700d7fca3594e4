"""The linear recurrence step by step: work O(L w^2), depth L.

This is the sequential program, ``y_l = A_l y_{l-1} + b_l`` in a loop. It multiplies blocks and vectors only, never two blocks, so
it is finite wherever the recurrence is.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks


def solve_step_by_step(blocks: Blocks, b: Array, reverse: bool, unroll: int | None = None) -> Array:
    """``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0``; ``unroll`` steps a turn of the loop (None: what suits the size of a step)."""
    axis, along = blocks.axis, Along(reverse=reverse)
    steps, b = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), (blocks, b))
    last = len(b) - 1

    # The loop looks steps up and writes states into one buffer, which starts as b. A scan over all but
    # the first step would have to cut the blocks and b, and to join the result: three copies, up to half
    # of the time.
    def step(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        y, trajectory = carry
        place = last - index if reverse else index
        block, b_l = along.step((steps, b), place)
        y = block.apply_step(y) + b_l
        return y, lax.dynamic_update_index_in_dim(trajectory, y, place, 0)

    start = (along.first(b, 1)[0], b)
    _, trajectory = lax.fori_loop(1, len(b), step, start, unroll=unroll or _unroll(steps, b))
    return jnp.moveaxis(trajectory, 0, axis)


def solve_transposed_step_by_step(
    blocks: Blocks, g: Array, reverse: bool, unroll: int | None = None
) -> Array:
    """``lam_l = g_l + A_{l+1}^T lam_{l+1}`` with ``lam_{L+1} = 0``."""

    # What goes from step to step is the mu of `LinearSolver`: every block meets the vector of its own step.
    def step(mu: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
        block, g_l = inputs
        lam = g_l + mu
        return block.transpose().apply_step(lam), lam

    _, lam = lax.scan(
        step,
        jnp.zeros_like(g[0]),
        (blocks, g),
        reverse=not reverse,
        unroll=unroll or _unroll(blocks, g),
    )
    return lam


def _unroll(blocks: Blocks, b: Array) -> int:
    """Steps a turn of the loop, as measured on 2 CPU cores.

    For 1x1, 2x2, 4x4 blocks a step takes 7, 13, 17 ns with one step a turn, 5, 7, 10 with two, and 4, 6, 9
    with four; a transposed 4x4 step 16, 13, 30, and a transposed 8x8 step 23, 52, 43. In batches of 8, from
    2x2 on, one step a turn is the fastest or nearly so.
    """
    entries = max(b.size, sum(leaf.size for leaf in jax.tree.leaves(blocks))) // len(b)
    return 4 if entries <= 4 else 2 if entries <= 16 else 1
