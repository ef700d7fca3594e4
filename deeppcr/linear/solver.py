"""What a solver of the linear recurrence is: `solve`, and from it the solution of the transposed system.

``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0`` is the block bidiagonal system ``M y = b``, ``M = I - (A_l below
the diagonal)``. The transposed system ``M^T lam = g`` runs the other way: ``lam_L = g_L``, ``lam_l = g_l +
A_{l+1}^T lam_{l+1}``. Taken at its word, that needs the blocks moved by one place, a copy of them all. With
``mu_l = A_l^T lam_l`` it reads

    mu_l = A_l^T mu_{l+1} + A_l^T g_l,    lam_l = g_l + mu_{l+1},

the same recurrence backwards, with the blocks where they are; only vectors move.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
from jax import Array

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks


class LinearSolver(ABC):
    """A way to solve the linear recurrence: frozen, hashable, and without a state.

    ``b: [chain, *batch, w]``. The block of the first step (the last one if ``reverse``) meets a zero and is
    never looked at. bfloat16 and float16 are computed in float32. Required and not checked: ``b`` has the
    ``blocks.vector_shape`` and the dtype of the blocks.
    """

    def solve(self, blocks: Blocks, b: Array, reverse: bool = False) -> Array:
        """``y_l = A_l y_{l-1} + b_l``, ``y_0 = 0``; ``reverse``: ``y_l = A_l y_{l+1} + b_l``."""
        if b.size == 0 or blocks.length == 1:
            return b
        working = working_dtype(b.dtype)
        return self._solve(blocks.astype(working), b.astype(working), reverse).astype(b.dtype)

    def solve_transposed(self, blocks: Blocks, g: Array, reverse: bool = False) -> Array:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}``, ``lam_{L+1} = 0``: `solve` transposed."""
        if g.size == 0 or blocks.length == 1:
            return g
        working = working_dtype(g.dtype)
        return self._solve_transposed(blocks.astype(working), g.astype(working), reverse).astype(g.dtype)

    @abstractmethod
    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """`solve` for at least two steps, in float32 or better."""

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        """`solve_transposed` for at least two steps, in float32 or better."""
        transposed = blocks.transpose()
        mu = self._solve(transposed, transposed.apply(g), not reverse)
        return g + Along(reverse=not reverse).before(mu)


def working_dtype(dtype: Any) -> Any:
    """The dtype to compute in: float32 or better."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32) if half else dtype
