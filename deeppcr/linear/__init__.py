"""The linear recurrence ``y_l = A_l y_{l-1} + b_l`` and its solvers.

For users, checked and differentiable:

    solve_bidiagonal(A, b, *, initial=None, solver="auto", reverse=False, semiring="real") -> y

For the rest of deeppcr, unchecked; ``blocks: Blocks`` (see below), vectors ``[L, *batch, w]``:

    solve_recurrence(blocks, b, solver, reverse=False) -> y   differentiable to every order
    find_solver("auto" | "sequential" | ... | solver) -> solver

    solver.solve(blocks, b, reverse=False) -> y
        y_l = A_l y_{l-1} + b_l, y_0 = 0; not to be differentiated
    solver.solve_transposed(blocks, g, reverse=False) -> lam
        lam_l = g_l + A_{l+1}^T lam_{l+1}, lam_{L+1} = 0: the transpose of `solve`, for the adjoint
    solver.solve_unguarded(blocks, b, reverse=False) -> y
        `solve`, not judged by its residual: see `judged`

To start a recurrence at y_0, add ``A_1 y_0`` to ``b_1``. The block of the first step is otherwise
ignored.

Every solver takes every kind of blocks:

    Matrices(matrix [L, *batch, w, w])                   full matrices
    BlockDiagonals(matrix [L, *batch, m, k, k], groups)  block g acts on the entries groups[g]
    Diagonals(diagonal [L, *batch, w])                   diagonal matrices
    Scalars(scalar [L], batch_shape, width)              c_l I: discounted and cumulative sums
    Zeros.like(b)                                        y = b, without a solver

    blocks.length, .dtype, .width, .batch_shape, .vector_shape = (L, *batch, w)
    blocks.nbytes       bytes of the blocks of all steps
    blocks.block_size   how many entries each block couples: w, k, 1, 1, 0
    blocks.apply(y), .compose(earlier), .transpose(), .astype(dtype)

Parallel solvers multiply small blocks as a structure of arrays (`Blocks.to_struct_of_arrays`).

A new solver is a `LinearSolver` and one line in `named.SOLVERS`; a new kind of blocks is one class.
"""

from deeppcr.linear.blocks import Blocks, Diagonals, Matrices, Scalars, Zeros
from deeppcr.linear.groups import BlockDiagonals
from deeppcr.linear.judged import usual_sizes
from deeppcr.linear.named import (
    SOLVERS,
    choose_solver,
    find_solver,
    name_of,
    solve_recurrence,
)
from deeppcr.linear.reduction import CyclicReduction, ParallelCyclicReduction, PrefixScan
from deeppcr.linear.solver import Along, LinearSolver, Recurrence

__all__ = [
    "SOLVERS",
    "Along",
    "BlockDiagonals",
    "Blocks",
    "CyclicReduction",
    "Diagonals",
    "LinearSolver",
    "Matrices",
    "ParallelCyclicReduction",
    "PrefixScan",
    "Recurrence",
    "Scalars",
    "Zeros",
    "choose_solver",
    "find_solver",
    "name_of",
    "solve_recurrence",
    "usual_sizes",
]
