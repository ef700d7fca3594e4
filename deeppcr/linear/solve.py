"""`solve_bidiagonal`, the linear recurrence for users: checked, differentiable, with any solver.

``y_l = A_l y_{l-1} + b_l`` is ``M y = b`` with a block bidiagonal M. Its derivative needs no look inside the
solver:

    M dy = db - dM y,    that is    dy_l = A_l dy_{l-1} + (db_l + dA_l y_{l-1}),

the same recurrence with another right-hand side, and backwards ``M^T lam = g``: one solve of the transposed
recurrence, after which ``b`` has the gradient ``lam`` and ``A_l`` the outer product of ``lam_l`` and
``y_{l-1}``, for all l at once. `jax.lax.custom_linear_solve` states just that, and gives every order of
derivative.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from deeppcr.axis import explicit_mesh, with_auto_axes, with_auto_types
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import BlockDiagonals, Blocks, Diagonals, Matrices
from deeppcr.linear.choose import find_solver
from deeppcr.linear.sharded import Sharded
from deeppcr.linear.solver import LinearSolver, stand_alone


def solve_bidiagonal(
    A: ArrayLike | Blocks,
    b: ArrayLike,
    *,
    initial: ArrayLike | None = None,
    solver: str | LinearSolver = "auto",
    reverse: bool = False,
) -> Array:
    """Solve the linear recurrence ``y_l = A_l y_{l-1} + b_l`` for l = 1..L, a block bidiagonal system.

    Differentiable to every order in ``A``, ``b`` and ``initial``, by the same solver and not through it.

    With every solver the solution is finite where it is so step by step: where a product of blocks overflows and no state does, a
    parallel solver ends with the sequential one, which takes its time. A product that underflows is taken for zero. Whatever is
    not finite travels along the chain only: a step is never harmed by the ``A`` and ``b`` of the steps after it.

    Args:
        A: ``[L, *batch, w, w]`` for full matrices, ``[L, *batch, w]`` for diagonal ones, or blocks of any kind:
            `Matrices`, `BlockDiagonals`, `Diagonals`, `Scalars`, `Zeros`.
        b: ``[L, *batch, w]``, of the dtype of ``A``, with the same batch axes.
        initial: ``y_0: [*batch, w]``; zero if None.
        solver: a solver, or its name: "auto" (the fastest for this shape and machine), "sequential", "pcr",
            "cyclic_reduction", "prefix_scan", "chunked".
        reverse: ``y_l = A_l y_{l+1} + b_l`` instead, with ``y_{L+1} = initial``.

    Returns:
        y: ``[L, *batch, w]``.

    Raises:
        ValueError: shapes do not fit together, or no solver has that name.
        TypeError: dtypes differ or are not floating, or ``solver`` is neither a solver nor a name.

    Example:
        >>> A, b = jnp.array([[2.0], [3.0], [4.0]]), jnp.array([[1.0], [1.0], [1.0]])
        >>> solve_bidiagonal(A, b)[:, 0]  # 1, 3 * 1 + 1, 4 * 4 + 1
        Array([ 1.,  4., 17.], dtype=float32)
    """
    chosen = find_solver(solver)
    b = jnp.asarray(b)
    blocks = _as_blocks(A, b)
    if blocks.vector_shape != b.shape:
        raise ValueError(
            f"A and b do not fit together: A is {type(blocks).__name__} for vectors "
            f"{_axes(blocks.vector_shape)}, b has shape {_axes(b.shape)}; "
            "chain, batch and state axes must match exactly."
        )
    _check_dtype("b", b.dtype, blocks.dtype)
    if initial is not None:
        initial = jnp.asarray(initial)
        if initial.shape != b.shape[1:]:
            raise ValueError(
                f"initial has shape {_axes(initial.shape)}, expected {_axes(b.shape[1:])}: one state of b."
            )
        _check_dtype("initial", initial.dtype, blocks.dtype)
        if blocks.length:
            along = Along(reverse=reverse)
            b_first = along.first(b, 1) + along.first(blocks, 1).apply(initial[None])
            b = along.join(b_first, along.last(b, blocks.length - 1))
    mesh = explicit_mesh(blocks, b, shared=isinstance(chosen, Sharded))
    if mesh is None:
        if isinstance(chosen, Sharded):
            chosen = dataclasses.replace(chosen, mesh=with_auto_types(chosen.mesh))
        return solve_recurrence(blocks, b, chosen, reverse)
    out = jax.typeof(b).sharding.spec
    y: Array = with_auto_axes(
        lambda blocks, b: solve_recurrence(blocks, b, _on_the_mesh(chosen), reverse),
        mesh,
        out,
        blocks,
        b,
    )
    return y


def _on_the_mesh(solver: LinearSolver) -> LinearSolver:
    """The solver on the mesh that is in use."""
    return (
        dataclasses.replace(solver, mesh=jax.sharding.get_abstract_mesh())
        if isinstance(solver, Sharded)
        else solver
    )


def solve_recurrence(
    blocks: Blocks, b: Array, solver: LinearSolver, reverse: bool = False
) -> Array:
    """``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0``, unchecked; differentiable to every order."""
    if stand_alone(blocks, b):
        return b

    along = Along(reverse=reverse)

    def system(y: Array) -> Array:
        return y - along.clear_first(blocks.apply(along.before(y)))

    def solve(_: Any, right: Array) -> Array:
        return solver.solve(blocks, right, reverse)

    def solve_transposed(_: Any, right: Array) -> Array:
        return solver.solve_transposed(blocks, right, reverse)

    y: Array = lax.custom_linear_solve(system, b, solve, solve_transposed)
    return y


def _as_blocks(A: ArrayLike | Blocks, b: Array) -> Blocks:
    if isinstance(A, BlockDiagonals):
        expected = (A.groups.count, A.groups.size, A.groups.size)
        if A.matrix.shape[-3:] != expected:
            raise ValueError(
                f"A.matrix has shape {_axes(A.matrix.shape)}, and A.groups expects it to end in {_axes(expected)}."
            )
    if isinstance(A, Blocks):
        return A
    A = jnp.asarray(A)
    if b.ndim < 2:
        raise ValueError(f"b has shape {_axes(b.shape)}, expected [chain, *batch, state].")
    if A.ndim == b.ndim + 1 and A.shape[-1] == A.shape[-2]:
        return Matrices(A)
    if A.ndim == b.ndim:
        return Diagonals(A)
    raise ValueError(
        f"A has shape {_axes(A.shape)} and b {_axes(b.shape)}; "
        f"expected A {_axes((*b.shape, b.shape[-1]))} if full, {_axes(b.shape)} if diagonal."
    )


def _check_dtype(name: str, dtype: Any, expected: Any) -> None:
    if not jnp.issubdtype(expected, jnp.inexact):
        raise TypeError(
            f"A has dtype {expected}, expected a floating or complex one; convert it, e.g. A.astype(float)."
        )
    if dtype != expected:
        raise TypeError(
            f"{name} has dtype {dtype} and A has {expected}; they must agree, convert one of them."
        )


def _axes(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
