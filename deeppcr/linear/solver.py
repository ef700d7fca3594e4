"""What a solver of the linear recurrence is: `solve`, and from it the solution of the transposed system.

``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0`` is the block bidiagonal system ``M y = b``, ``M = I - (A_l below
the diagonal)``. The transposed system ``M^T lam = g`` runs the other way: ``lam_L = g_L``, ``lam_l = g_l +
A_{l+1}^T lam_{l+1}``. Taken at its word, that needs the blocks moved by one place, a copy of them all. With
``mu_l = A_l^T lam_l`` it reads

    mu_l = A_l^T mu_{l+1} + A_l^T g_l,    lam_l = g_l + mu_{l+1},

the same recurrence backwards, with the blocks where they are; only vectors move.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks, Zeros


class LinearSolver(ABC):
    """A way to solve the linear recurrence: frozen, hashable, and without a state.

    ``b: [chain, *batch, w]``. The block of the first step (the last one if ``reverse``) meets a zero and is
    never looked at. bfloat16 and float16 are computed in float32. Required and not checked: ``b`` has the
    ``blocks.vector_shape`` and the dtype of the blocks.

    A solver proper is `_solve`: of at least two steps, with blocks that are not zero.
    """

    def solve(self, blocks: Blocks, b: Array, reverse: bool = False) -> Array:
        """``y_l = A_l y_{l-1} + b_l``, ``y_0 = 0``; ``reverse``: ``y_l = A_l y_{l+1} + b_l``."""
        return _prepared(self._solve, blocks, b, reverse)

    def solve_transposed(self, blocks: Blocks, g: Array, reverse: bool = False) -> Array:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}``, ``lam_{L+1} = 0``: `solve` transposed."""
        return _prepared(self._solve_transposed, blocks, g, reverse)

    @abstractmethod
    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """`solve` for at least two steps, in float32 or better."""

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        """`solve_transposed` for at least two steps, in float32 or better."""
        transposed = blocks.transpose()
        mu = self._solve(transposed, transposed.apply(g), not reverse)
        return g + Along(reverse=not reverse).before(mu)


def stand_alone(blocks: Blocks, b: Array) -> bool:
    """Whether no step depends on another, so that ``b`` is the solution."""
    return b.size == 0 or blocks.length == 1 or isinstance(blocks, Zeros)


def _prepared(solve: Callable[[Blocks, Array, bool], Array], blocks: Blocks, b: Array, reverse: bool) -> Array:
    if stand_alone(blocks, b):
        return b
    working = working_dtype(b.dtype)
    return solve(blocks.astype(working), b.astype(working), reverse).astype(b.dtype)


def working_dtype(dtype: Any) -> Any:
    """The dtype to compute in: float32 or better."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32) if half else dtype
