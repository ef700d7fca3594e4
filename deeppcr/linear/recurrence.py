"""The linear recurrence step by step: work O(L w^2), depth L.

This is the sequential program, ``y_l = A_l y_{l-1} + b_l`` in a `jax.lax.scan`. It never multiplies two blocks, so it does w times
less work than any parallel solver, and on a CPU it is hard to beat.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.solver import LinearSolver


@dataclasses.dataclass(frozen=True)
class Recurrence(LinearSolver):
    """Sequential `jax.lax.scan`, ``unroll`` steps a turn."""

    unroll: int = 1

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        axis, along = blocks.axis, Along(reverse=reverse)
        steps, b = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), (blocks, b))
        # Blocks are looked up by index: leaving out the first one by a slice would copy all the others.
        inputs = along.last((jnp.arange(len(b)), b), len(b) - 1)

        def step(y: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            index, b_l = inputs
            y = along.step(steps, index).apply(y) + b_l
            return y, y

        first = along.first(b, 1)
        _, rest = lax.scan(step, first[0], inputs, reverse=reverse, unroll=self.unroll)
        return jnp.moveaxis(along.join(first, rest), 0, axis)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        # What goes from step to step is the mu of `LinearSolver`: every block meets the vector of its own step.
        def step(mu: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
            block, g_l = inputs
            lam = g_l + mu
            return block.transpose().apply(lam), lam

        _, lam = lax.scan(step, jnp.zeros_like(g[0]), (blocks, g), reverse=not reverse, unroll=self.unroll)
        return lam
