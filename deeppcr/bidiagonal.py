"""`solve_bidiagonal`, the linear recurrence for users: checked, over any semiring."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from deeppcr.arrays import explicit_mesh, with_auto_axes, with_auto_types
from deeppcr.checks import as_array
from deeppcr.linear.blocks import Blocks, Diagonals, Matrices
from deeppcr.linear.groups import BlockDiagonals
from deeppcr.linear.named import find_solver, solve_recurrence
from deeppcr.linear.semiring import check_semiring, solve_over
from deeppcr.linear.solver import Along, LinearSolver
from deeppcr.lower import is_eager
from deeppcr.sharding import Sharded


def solve_bidiagonal(
    A: ArrayLike | Blocks,
    b: ArrayLike,
    *,
    initial: ArrayLike | None = None,
    solver: str | LinearSolver = "auto",
    reverse: bool = False,
    semiring: str = "real",
) -> Array:
    """Solve the block bidiagonal system $y_l = A_l y_{l-1} + b_l$, $l = 1, ..., L$.

    Differentiable to every order in ``A``, ``b`` and ``initial``. Derivatives are solutions of a
    linear recurrence by the same solver.

    With every solver the solution is as accurate as the sequential one, up to a small factor, and
    finite wherever that is. A parallel solver multiplies blocks with each other. A product may
    overflow, or lose its digits, where no state does. So every solution is judged by its residual,
    corrected, and if need be completed step by step. An inf or NaN never reaches an earlier step.

    With ``semiring="log"`` all arrays are logarithms: products are sums, and the sum of terms $t_k$
    is $\\log \\sum_k \\exp t_k$. With "max" it is $\\max_k t_k$. Zero is -inf. These are the
    recurrences of hidden Markov models and of best paths. Gradients are posterior probabilities, or
    1 along the best path (the first of several).

    Args:
        A: the blocks, floating or complex: ``[L, *batch, w, w]`` for full matrices,
            ``[L, *batch, w]`` for diagonal ones, or one of the kinds of `Blocks`:
            `Matrices`, `BlockDiagonals`, `Diagonals`, `Scalars`, `Zeros`.
        b: ``[L, *batch, w]``, of the dtype of ``A``, with the same batch axes.
        initial: $y_0$, ``[*batch, w]``, of the same dtype; None for zero.
        solver: a solver, or its name: "auto" (chosen by shape and platform), "sequential", "pcr",
            "cyclic_reduction", "prefix_scan".
        reverse: solve $y_l = A_l y_{l+1} + b_l$ with $y_{L+1}$ = ``initial`` instead.
        semiring: "real", "log" or "max". The last two take full and diagonal blocks of real
            numbers, and the solvers "auto", "sequential" and "prefix_scan".

    Returns:
        y: ``[L, *batch, w]``, of the dtype of ``b``.

    Raises:
        ValueError: shapes are inconsistent, no solver or semiring has that name, or the semiring
            does not take the solver.
        TypeError: dtypes differ or are not floating, ``solver`` is neither a solver nor a name, or
            the semiring does not take the blocks.

    Example:
        >>> A, b = jnp.array([[2.0], [3.0], [4.0]]), jnp.array([[1.0], [1.0], [1.0]])
        >>> deeppcr.solve_bidiagonal(A, b)[:, 0]  # 1, 3 * 1 + 1, 4 * 4 + 1
        Array([ 1.,  4., 17.], dtype=float32)
        >>> deeppcr.solve_bidiagonal(A, b, semiring="max")[:, 0]  # 1, max(3 + 1, 1), max(4 + 4, 1)
        Array([1., 4., 8.], dtype=float32)

    References:
        R. W. Hockney, C. R. Jesshope, *Parallel Computers 2*, 1988, section 5.4; J. Goodman,
        *Semiring Parsing*, Computational Linguistics 25, 1999.
    """
    solver = find_solver(solver)
    b = as_array("b", b)
    blocks = _as_blocks(A, b)
    if blocks.vector_shape != b.shape:
        raise ValueError(
            f"A and b do not fit together: A is {type(blocks).__name__} for vectors "
            f"{_axes(blocks.vector_shape)}, b has shape {_axes(b.shape)}; "
            f"expected b {_axes(blocks.vector_shape)}."
        )
    _check_dtype("b", b.dtype, blocks.dtype)
    if initial is not None:
        initial = as_array("initial", initial)
        if initial.shape != b.shape[1:]:
            raise ValueError(
                f"initial has shape {_axes(initial.shape)}, expected {_axes(b.shape[1:])}: "
                "the shape of one state, that of b without its chain axis."
            )
        _check_dtype("initial", initial.dtype, blocks.dtype)
    check_semiring(semiring, blocks, b, solver)
    is_kept = not isinstance(solver, Sharded) and is_eager(jax.tree.leaves((blocks, b, initial)))
    solved = _solved_compiled if is_kept else _solved
    return solved(blocks, b, initial, solver, reverse, semiring)


def _solved(
    blocks: Blocks,
    b: Array,
    initial: Array | None,
    solver: LinearSolver,
    reverse: bool,
    semiring: str,
) -> Array:
    """`solve_bidiagonal`, checked."""
    if semiring == "real" and initial is not None and blocks.length:
        along = Along(reverse=reverse)
        b_first = along.first(b, 1) + along.first(blocks, 1).apply(initial[None])
        b = along.join(b_first, along.last(b, blocks.length - 1))
    mesh = explicit_mesh(blocks, b, shared=isinstance(solver, Sharded))
    if mesh is None and isinstance(solver, Sharded):
        solver = dataclasses.replace(solver, mesh=with_auto_types(solver.mesh))

    def solve(blocks: Blocks, b: Array, initial: Array | None) -> Array:
        on_mesh = solver
        if mesh is not None and isinstance(solver, Sharded):
            on_mesh = dataclasses.replace(solver, mesh=jax.sharding.get_abstract_mesh())
        if semiring != "real":
            return solve_over(semiring, blocks, b, initial, on_mesh, reverse)
        return solve_recurrence(blocks, b, on_mesh, reverse)

    if mesh is None:
        return solve(blocks, b, initial)
    spec = jax.typeof(b).sharding.spec
    return with_auto_axes(solve, mesh, spec, blocks, b, initial)


_solved_compiled = jax.jit(_solved, static_argnames=("solver", "reverse", "semiring"))


def _as_blocks(A: ArrayLike | Blocks, b: Array) -> Blocks:
    if isinstance(A, BlockDiagonals):
        expected = (A.groups.count, A.groups.size, A.groups.size)
        if A.matrix.shape[-3:] != expected:
            raise ValueError(
                f"A.matrix has shape {_axes(A.matrix.shape)}, expected one that ends in "
                f"{_axes(expected)}, the shape of A.groups."
            )
    if isinstance(A, Blocks):
        return A
    A = as_array("A", A)
    if b.ndim < 2:
        raise ValueError(
            f"b has shape {_axes(b.shape)}, expected [chain, *batch, state]; numbers are [L, 1]."
        )
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
            f"A has dtype {expected}, expected a floating or complex one; "
            "convert it: A.astype(float)."
        )
    if dtype != expected:
        raise TypeError(
            f"{name} has dtype {dtype} and A has {expected}, expected one dtype; convert one of "
            "them."
        )


def _axes(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
