"""`solve_bidiagonal`, the linear recurrence for users: checked, differentiable, with any solver.

``y_l = A_l y_{l-1} + b_l`` is ``M y = b`` with a block bidiagonal M. Its derivative is not that of
the solver's operations:

    M dy = db - dM y,    that is    dy_l = A_l dy_{l-1} + (db_l + dA_l y_{l-1}),

the same recurrence with another right-hand side. In reverse mode it is ``M^T lam = g``, one solve
of the transposed recurrence. The gradient of ``b`` is ``lam``, and that of ``A_l`` is the outer
product of ``lam_l`` and ``y_{l-1}``, for all l at once. `deeppcr.linear.linear_map` implements
this, with derivatives of every order.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from deeppcr.arrays.avals import like
from deeppcr.arrays.state import Leaves
from deeppcr.axis import explicit_mesh, with_auto_axes, with_auto_types
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks, Diagonals, Matrices
from deeppcr.linear.groups import BlockDiagonals
from deeppcr.linear.linear_map import LinearMap, solved
from deeppcr.linear.named import find_solver
from deeppcr.linear.sharded import Sharded
from deeppcr.linear.solver import LinearSolver
from deeppcr.lower import is_eager


def solve_bidiagonal(
    A: ArrayLike | Blocks,
    b: ArrayLike,
    *,
    initial: ArrayLike | None = None,
    solver: str | LinearSolver = "auto",
    reverse: bool = False,
) -> Array:
    """Solve the block bidiagonal system $y_l = A_l y_{l-1} + b_l$, $l = 1, ..., L$.

    Differentiable to every order in ``A``, ``b`` and ``initial``. Derivatives are solutions of a
    linear recurrence by the same solver.

    With every solver the solution is as accurate as the sequential one, up to a small factor, and
    finite wherever that is. A parallel solver multiplies blocks with each other. A product may
    overflow, or lose its digits, where no state does. So every solution is judged by its residual,
    corrected, and if need be completed step by step. An inf or NaN never reaches an earlier step.

    Args:
        A: the blocks, floating or complex: ``[L, *batch, w, w]`` for full matrices,
            ``[L, *batch, w]`` for diagonal ones, or one of the kinds of `Blocks`:
            `Matrices`, `BlockDiagonals`, `Diagonals`, `Scalars`, `Zeros`.
        b: ``[L, *batch, w]``, of the dtype of ``A``, with the same batch axes.
        initial: $y_0$, ``[*batch, w]``, of the same dtype; None for zero.
        solver: a solver, or its name: "auto" (chosen by shape and platform), "sequential", "pcr",
            "cyclic_reduction", "prefix_scan", "chunked".
        reverse: solve $y_l = A_l y_{l+1} + b_l$ with $y_{L+1}$ = ``initial`` instead.

    Returns:
        y: ``[L, *batch, w]``, of the dtype of ``b``.

    Raises:
        ValueError: shapes are inconsistent, or no solver has that name.
        TypeError: dtypes differ or are not floating, or ``solver`` is neither a solver nor a name.

    Example:
        >>> A, b = jnp.array([[2.0], [3.0], [4.0]]), jnp.array([[1.0], [1.0], [1.0]])
        >>> deeppcr.solve_bidiagonal(A, b)[:, 0]  # 1, 3 * 1 + 1, 4 * 4 + 1
        Array([ 1.,  4., 17.], dtype=float32)

    References:
        R. W. Hockney, C. R. Jesshope, *Parallel Computers 2*, 1988, section 5.4.
    """
    chosen = find_solver(solver)
    b = jnp.asarray(b)
    blocks = _as_blocks(A, b)
    if blocks.vector_shape != b.shape:
        raise ValueError(
            f"A and b do not fit together: A is {type(blocks).__name__} for vectors "
            f"{_axes(blocks.vector_shape)}, b has shape {_axes(b.shape)}; "
            f"expected b {_axes(blocks.vector_shape)}."
        )
    _check_dtype("b", b.dtype, blocks.dtype)
    if initial is not None:
        initial = jnp.asarray(initial)
        if initial.shape != b.shape[1:]:
            raise ValueError(
                f"initial has shape {_axes(initial.shape)}, expected {_axes(b.shape[1:])}: "
                "the shape of one state, that of b without its chain axis."
            )
        _check_dtype("initial", initial.dtype, blocks.dtype)
    is_kept = not isinstance(chosen, Sharded) and is_eager(jax.tree.leaves((blocks, b, initial)))
    solved = _solved_compiled if is_kept else _solved
    return solved(blocks, b, initial, chosen, reverse)


def _solved(
    blocks: Blocks, b: Array, initial: Array | None, solver: LinearSolver, reverse: bool
) -> Array:
    """`solve_bidiagonal`, checked."""
    if initial is not None and blocks.length:
        along = Along(reverse=reverse)
        b_first = along.first(b, 1) + along.first(blocks, 1).apply(initial[None])
        b = along.join(b_first, along.last(b, blocks.length - 1))
    mesh = explicit_mesh(blocks, b, shared=isinstance(solver, Sharded))
    if mesh is None:
        if isinstance(solver, Sharded):
            solver = dataclasses.replace(solver, mesh=with_auto_types(solver.mesh))
        return solve_recurrence(blocks, b, solver, reverse)

    def on_the_mesh(blocks: Blocks, b: Array) -> Array:
        here = solver
        if isinstance(solver, Sharded):
            here = dataclasses.replace(solver, mesh=jax.sharding.get_abstract_mesh())
        return solve_recurrence(blocks, b, here, reverse)

    y: Array = with_auto_axes(on_the_mesh, mesh, jax.typeof(b).sharding.spec, blocks, b)
    return y


_solved_compiled = jax.jit(_solved, static_argnames=("solver", "reverse"))


def solve_recurrence(
    blocks: Blocks, b: Array, solver: LinearSolver, reverse: bool = False
) -> Array:
    """``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0``, unchecked; differentiable to every order."""
    blocks, b = like((blocks, b), blocks, b)
    if solver.is_decoupled(blocks, b):
        return b

    along = Along(reverse=reverse)

    leaves, tree = jax.tree.flatten(blocks)

    def with_blocks(known: Leaves) -> Blocks:
        found: Blocks = jax.tree.unflatten(tree, known)
        return found

    def product(known: Leaves, x: tuple[Array, Any]) -> Array:
        y: Array = along.clear_first(with_blocks(known).apply(along.before(x[0])))
        return y

    solution = LinearMap(
        lambda known, x: solver.solve(with_blocks(known), x[0], reverse),
        lambda known, g: (solver.solve_transposed(with_blocks(known), g, reverse), ()),
        product,
    )
    y: Array = solved(solution, leaves, (b, ()))
    return y


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
    A = jnp.asarray(A)
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
