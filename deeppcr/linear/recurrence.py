"""The linear recurrence step by step: work O(L w^2), depth L.

See `deeppcr.linear.step_by_step`. It never multiplies two blocks, so it does w times less work than any parallel solver, and on
a CPU it is hard to beat.
"""

import dataclasses

from jax import Array

from deeppcr.linear.blocks import Blocks
from deeppcr.linear.solver import LinearSolver
from deeppcr.linear.step_by_step import solve_step_by_step, solve_transposed_step_by_step


@dataclasses.dataclass(frozen=True)
class Recurrence(LinearSolver):
    """One step after another, ``unroll`` of them a turn of the loop (None: what suits the size of a step)."""

    unroll: int | None = None

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        return solve_step_by_step(blocks, b, reverse, self.unroll)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return solve_transposed_step_by_step(blocks, g, reverse, self.unroll)

    def _composes(self, blocks: Blocks) -> bool:
        return False
