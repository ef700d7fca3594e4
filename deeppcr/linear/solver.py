"""`LinearSolver`, the protocol of all solvers, and `Recurrence`, the sequential one.

``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0`` is the block bidiagonal system ``M y = b``, where M has
the identity on its diagonal and ``-A_l`` below it. The transposed system ``M^T lam = g`` runs
backwards: ``lam_L = g_L``, ``lam_l = g_l + A_{l+1}^T lam_{l+1}``. In this form the blocks have to
be shifted by one step, which copies all of them. With ``mu_l = A_l^T lam_l`` it becomes

    mu_l = A_l^T mu_{l+1} + A_l^T g_l,    lam_l = g_l + mu_{l+1},

the same recurrence backwards, in which only vectors are shifted.

A parallel solver multiplies blocks, and a product of blocks may overflow or lose digits where no
state does. So its solution is judged, corrected and completed: see `deeppcr.linear.judged`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.checks import check_flag
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks, Zeros
from deeppcr.linear.judged import System, solve_judged
from deeppcr.linear.step_by_step import (
    solve_in_one_kernel,
    solve_step_by_step,
    solve_transposed_step_by_step,
)
from deeppcr.loops import unless

Solve = Callable[[Blocks, Array, bool], Array]


class LinearSolver(ABC):
    """A solver of the linear recurrence: frozen, hashable, stateless.

    ``b: [chain, *batch, w]``. The block of the first step (the last one if ``reverse``) is ignored.
    bfloat16 and float16 are computed in float32. Required and not checked: ``b`` has the
    ``vector_shape`` and the dtype of the blocks.

    A subclass defines `_solve`, which receives at least two steps and no `Zeros`.
    """

    def solve(self, blocks: Blocks, b: Array, reverse: bool = False) -> Array:
        """``y_l = A_l y_{l-1} + b_l``, ``y_0 = 0``; ``reverse``: ``y_l = A_l y_{l+1} + b_l``."""
        return self._in_float32(partial(self._judged, self._solve), blocks, b, reverse)

    def solve_transposed(self, blocks: Blocks, g: Array, reverse: bool = False) -> Array:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}``, ``lam_{L+1} = 0``: `solve` transposed."""
        judged = partial(self._judged, self._solve_transposed, transposed=True)
        return self._in_float32(judged, blocks, g, reverse)

    def solve_unguarded(self, blocks: Blocks, b: Array, reverse: bool = False) -> Array:
        """`solve`, not judged by its residual: for what checks its result itself."""
        if self._is_decoupled(blocks, b):
            return b
        working = working_dtype(b.dtype)
        return self._solve(blocks.astype(working), b.astype(working), reverse).astype(b.dtype)

    def solve_transposed_unguarded(self, blocks: Blocks, g: Array, reverse: bool = False) -> Array:
        """`solve_transposed`, not judged by its residual."""
        return self._in_float32(self._solve_transposed, blocks, g, reverse)

    def chosen(self, blocks: Callable[[], Blocks]) -> "LinearSolver":
        """The solver that runs for ``blocks``, of which shapes suffice: this one, unless "auto"."""
        return self

    @abstractmethod
    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """`solve_unguarded` for at least two steps, in float32 or better."""

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        """The transpose of `_solve`."""
        transposed = blocks.transpose()
        mu = self._solve(transposed, transposed.apply(g), not reverse)
        return g + Along(reverse=not reverse).before(mu)

    def multiplies(self, blocks: Blocks) -> bool:
        """Whether it multiplies these blocks with each other: then its solution is judged."""
        return True

    def _towards(self, reverse: bool) -> ChainAxis:
        """The chain axis of its arguments, in the direction of the recurrence."""
        return LOCAL.reversed if reverse else LOCAL

    def _is_decoupled(self, blocks: Blocks, b: Array) -> bool:
        """Whether no step depends on another, so that ``b`` is the solution."""
        return is_decoupled(blocks, b)

    def _in_float32(self, solve: Solve, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """``solve`` in float32 or better, unless the recurrence is decoupled."""
        if self._is_decoupled(blocks, b):
            return b
        working = working_dtype(b.dtype)
        return solve(blocks.astype(working), b.astype(working), reverse).astype(b.dtype)

    def _judged(
        self, solve: Solve, blocks: Blocks, b: Array, reverse: bool, transposed: bool = False
    ) -> Array:
        """``solve(blocks, b, reverse)``, judged by its residual if it multiplies blocks."""
        if not self.multiplies(blocks):
            return solve(blocks, b, reverse)

        system = System(b, self._towards(reverse != transposed), transposed)

        def solved(blocks: Blocks, b: Array) -> Array:
            return solve(blocks, b, reverse)

        def product(index: Array, y: Array) -> Array:
            block = Along().step(blocks, index)
            return (block.transpose() if transposed else block).apply_step(y)

        found = solve_judged(system, blocks, solved, by_blocks=True)
        left = found.leaving, found.y
        finished = partial(system.complete, product, found.prefix, found.y)
        return unless(found.prefix == system.total, left, finished)[1]


@dataclasses.dataclass(frozen=True)
class Recurrence(LinearSolver):
    """The sequential solver: a loop over the steps.

    Work O(L), depth L, no block products. The fastest solver on CPUs.

    Attributes:
        unroll: integer >= 1, steps per trip of the loop; None: chosen by the size of a step.
        fused: whether the loop is one kernel on an NVIDIA GPU, as in `Sequential`: blocks of up to
            64 x 64 with at most 4096 operations a step, in float32 or shorter.

    Raises:
        ValueError: ``fused`` is true, and the blocks are too large for one kernel, or float64.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.Recurrence())[-1]
        Array([2.], dtype=float32)
    """

    unroll: int | None = None
    fused: bool = False

    def __post_init__(self) -> None:
        check_flag("fused", self.fused)

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        if self.fused:
            return solve_in_one_kernel(blocks, b, reverse, self.unroll)
        return solve_step_by_step(blocks, b, reverse, self.unroll)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        if self.fused:
            return super()._solve_transposed(blocks, g, reverse)
        return solve_transposed_step_by_step(blocks, g, reverse, self.unroll)

    def multiplies(self, blocks: Blocks) -> bool:
        return False


def is_decoupled(blocks: Blocks, b: Array) -> bool:
    """Whether no step depends on another, so that ``b`` is the solution."""
    return b.size == 0 or blocks.length == 1 or isinstance(blocks, Zeros)


def working_dtype(dtype: Any) -> Any:
    """The dtype to compute in: float32 or better."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32) if half else dtype
