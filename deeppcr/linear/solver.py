"""What a solver of the linear recurrence is: `solve`, and from it the solution of the transposed system.

``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0`` is the block bidiagonal system ``M y = b``, ``M = I - (A_l below
the diagonal)``. The transposed system ``M^T lam = g`` runs the other way: ``lam_L = g_L``, ``lam_l = g_l +
A_{l+1}^T lam_{l+1}``. Taken at its word, that needs the blocks moved by one place, a copy of them all. With
``mu_l = A_l^T lam_l`` it reads

    mu_l = A_l^T mu_{l+1} + A_l^T g_l,    lam_l = g_l + mu_{l+1},

the same recurrence backwards, with the blocks where they are; only vectors move.

A parallel solver multiplies blocks, and a product of blocks may overflow where every state is finite: ``A_l = 30`` at a state
that stays 0. What has overflowed is infinite or NaN in the solution, too, whatever it is multiplied by or added to. So a solution
that is finite needs no more than a look, and one that is not is computed again, step by step: the sequential fallback.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.fallback import unless_finite
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks, Zeros
from deeppcr.linear.step_by_step import solve_step_by_step, solve_transposed_step_by_step

Solve = Callable[[Blocks, Array, bool], Array]


class LinearSolver(ABC):
    """A way to solve the linear recurrence: frozen, hashable, and without a state.

    ``b: [chain, *batch, w]``. The block of the first step (the last one if ``reverse``) meets a zero and is
    never looked at. bfloat16 and float16 are computed in float32. Required and not checked: ``b`` has the
    ``blocks.vector_shape`` and the dtype of the blocks.

    A solver proper is `_solve`: of at least two steps, with blocks that are not zero.
    """

    def solve(self, blocks: Blocks, b: Array, reverse: bool = False) -> Array:
        """``y_l = A_l y_{l-1} + b_l``, ``y_0 = 0``; ``reverse``: ``y_l = A_l y_{l+1} + b_l``."""
        return self._prepared(self._guarded(self._solve, self._sequential), blocks, b, reverse)

    def solve_transposed(self, blocks: Blocks, g: Array, reverse: bool = False) -> Array:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}``, ``lam_{L+1} = 0``: `solve` transposed."""
        return self._prepared(
            self._guarded(self._solve_transposed, self._sequential_transposed), blocks, g, reverse
        )

    def solve_unguarded(self, blocks: Blocks, b: Array, reverse: bool = False) -> Array:
        """`solve` without the sequential fallback: not finite where a product of blocks overflows.

        For an iteration that looks at what it gets, and on an accelerator waits for no more than it has to.
        """
        return self._prepared(self._solve, blocks, b, reverse)

    def solve_transposed_unguarded(self, blocks: Blocks, g: Array, reverse: bool = False) -> Array:
        """`solve_transposed` without the sequential fallback."""
        return self._prepared(self._solve_transposed, blocks, g, reverse)

    @abstractmethod
    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """`solve_unguarded` for at least two steps, in float32 or better."""

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        """The transpose of `_solve`."""
        transposed = blocks.transpose()
        mu = self._solve(transposed, transposed.apply(g), not reverse)
        return g + Along(reverse=not reverse).before(mu)

    def _sequential(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """`_solve` step by step."""
        return solve_step_by_step(blocks, b, reverse)

    def _sequential_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        """`_solve_transposed` step by step."""
        return solve_transposed_step_by_step(blocks, g, reverse)

    def _composes(self, blocks: Blocks) -> bool:
        """Whether these blocks are multiplied with each other, so that a product may overflow."""
        return True

    @property
    def _axis(self) -> ChainAxis:
        """The chain axis of the arrays that it is given."""
        return LOCAL

    def _stand_alone(self, blocks: Blocks, b: Array) -> bool:
        """Whether no step depends on another, so that ``b`` is the solution."""
        return stand_alone(blocks, b)

    def _prepared(self, solve: Solve, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """``solve`` in float32 or better, if there is something to solve."""
        if self._stand_alone(blocks, b):
            return b
        working = working_dtype(b.dtype)
        return solve(blocks.astype(working), b.astype(working), reverse).astype(b.dtype)

    def _guarded(self, solve: Solve, sequential: Solve) -> Solve:
        """``solve``, and ``sequential`` if its result is not finite."""

        def guarded(blocks: Blocks, b: Array, reverse: bool) -> Array:
            y = solve(blocks, b, reverse)
            if not self._composes(blocks):
                return y
            return unless_finite(y, partial(sequential, blocks, b, reverse), self._axis)

        return guarded


def stand_alone(blocks: Blocks, b: Array) -> bool:
    """Whether no step depends on another, so that ``b`` is the solution."""
    return b.size == 0 or blocks.length == 1 or isinstance(blocks, Zeros)


def working_dtype(dtype: Any) -> Any:
    """The dtype to compute in: float32 or better."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32) if half else dtype
