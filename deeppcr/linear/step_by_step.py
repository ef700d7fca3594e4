"""The linear recurrence step by step: work O(L w^2), depth L.

This is the sequential program, ``y_l = A_l y_{l-1} + b_l`` in a loop. It multiplies blocks with
vectors and never with each other. So it does w times less work than any parallel solver, and its
result is finite wherever the states are. On a CPU it is the fastest solver.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.avals import of_step
from deeppcr.fused import CannotFuse, FusedStep, fused_scan
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.platforms import platforms
from depth.jaxprs import Program


def solve_step_by_step(blocks: Blocks, b: Array, reverse: bool, unroll: int | None = None) -> Array:
    """``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0``.

    ``unroll``: steps per trip of the loop (None: chosen by the size of a step).
    """
    axis, along = blocks.axis, Along(reverse=reverse)
    steps, b = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), (blocks, b))
    last = len(b) - 1

    # The loop indexes the steps and writes the states into one buffer, which starts as b. A scan
    # over all but the first step would have to slice the blocks and b, and to join the result:
    # three copies, up to half of the time (jax 0.10.2).
    def step(count: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        y, trajectory = carry
        index = last - count if reverse else count
        block, b_l = along.step((steps, b), index)
        y = block.apply_step(y) + b_l
        return y, lax.dynamic_update_index_in_dim(trajectory, y, index, 0)

    start = (along.first(b, 1)[0], b)
    _, trajectory = lax.fori_loop(1, len(b), step, start, unroll=unroll or _unroll(steps, b))
    return jnp.moveaxis(trajectory, 0, axis)


def solve_transposed_step_by_step(
    blocks: Blocks, g: Array, reverse: bool, unroll: int | None = None
) -> Array:
    """``lam_l = g_l + A_{l+1}^T lam_{l+1}`` with ``lam_{L+1} = 0``."""

    # The carry is the mu of `deeppcr.linear.solver`, so that no block is shifted by a step.
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


def solve_in_one_kernel(
    blocks: Blocks, b: Array, reverse: bool, unroll: int | None = None
) -> Array:
    """`solve_step_by_step` as one kernel on a GPU.

    Raises:
        CannotFuse: there is no kernel for a step.
    """
    axis = blocks.axis
    steps, along = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), (blocks, b))
    leaves, tree = jax.tree.flatten(steps)

    def step(y: Array, *inputs: Array) -> tuple[Array, Array]:
        *block, is_first, b_l = inputs
        y = b_l + jnp.where(is_first, 0, jax.tree.unflatten(tree, block).apply_step(y))
        return y, y

    start = len(along) - 1 if reverse else 0
    arrays = [*leaves, jnp.arange(len(along)) == start, along]
    each = list(map(of_step, arrays))
    program = Program.of(jax.make_jaxpr(step)(each[-1], *each))
    try:
        fused = FusedStep.of(program, 1, len(arrays), along.shape[1:-1])
    except CannotFuse as error:
        raise CannotFuse(
            f"fused=True, but the recurrence of {type(blocks).__name__} cannot be one kernel: "
            f"{error}. Use fused=False."
        ) from None
    if "cuda" not in platforms():
        return solve_step_by_step(blocks, b, reverse, unroll)
    _, (y,) = fused_scan(fused, [jnp.zeros_like(along[0])], arrays, [], reverse, len(along))
    return jnp.moveaxis(y, 0, axis)


def _unroll(blocks: Blocks, b: Array) -> int:
    """Steps per trip of the loop."""
    # Factors of the time of a step (jax 0.10.2, 2 cores). Blocks of 1x1 to 4x4: 0.5 to 0.6 with
    # four steps per trip. A transposed step of 4x4: 0.8 with two, 1.9 with four; of 8x8: more than
    # 2 with two. In batches of 8, from 2x2 on, one step per trip is the fastest or nearly so.
    entries = max(b.size, sum(leaf.size for leaf in jax.tree.leaves(blocks))) // len(b)
    return 4 if entries <= 4 else 2 if entries <= 16 else 1
