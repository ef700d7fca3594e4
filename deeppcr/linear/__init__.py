"""The linear recurrence ``y_l = A_l y_{l-1} + b_l``: one file for each way to solve it.

For users, checked and differentiable:

    solve_bidiagonal(A, b, *, initial=None, solver="auto", reverse=False) -> y

For the rest of deeppcr, unchecked, with ``blocks: Blocks`` (see below) and vectors ``[L, *batch, w]``:

    solve_recurrence(blocks, b, solver, reverse=False) -> y     differentiable to every order
    solver.solve(blocks, b, reverse=False) -> y                 y_l = A_l y_{l-1} + b_l, y_0 = 0; not for differentiation
    solver.solve_transposed(blocks, g, reverse=False) -> lam    lam_l = g_l + A_{l+1}^T lam_{l+1}, lam_{L+1} = 0, for the
                                                                adjoint: the transpose of ``solve``, same arguments
    solver.solve_unguarded(blocks, b, reverse=False) -> y       not finite where a product of blocks overflows: for iterations
    find_solver("auto" | "sequential" | ... | solver) -> solver

To start a recurrence at y_0, add ``A_1 y_0`` to ``b_1``. Blocks of the first step are otherwise ignored.

Every solver takes every kind of blocks:

    Matrices(matrix [L, *batch, w, w])                    full
    BlockDiagonals(matrix [L, *batch, m, k, k], groups)   small matrices: block g on the entries groups[g] of the state
    Diagonals(diagonal [L, *batch, w])                    diagonal
    Scalars(scalar [L], batch_shape, width)               c_l I; cumulative and discounted sums
    Zeros.like(b)                                         none: y = b, no solver is asked

    blocks.length, .dtype, .width, .batch_shape, .vector_shape = (L, *batch, w)
    blocks.nbytes       what the blocks of all steps take
    blocks.coupled      how many entries mix: w, k, 1, 1, 0
    blocks.apply(y), .compose(earlier), .transpose(), .astype(dtype)

Parallel solvers ask for blocks in the layout in which they are multiplied fastest (`Blocks.lay_out`), which on a CPU is another
one than on accelerators; `equations` has a round of parallel cyclic reduction.

A new solver is one file with a `LinearSolver` and one line in `choose.SOLVERS`; a new kind of block is one
file in `blocks`.
"""

from deeppcr.linear.blocks import BlockDiagonals, Blocks, Diagonals, Matrices, Scalars, Zeros
from deeppcr.linear.choose import (
    SOLVERS,
    Auto,
    choose_parallel_solver,
    choose_solver,
    find_solver,
    name_of,
)
from deeppcr.linear.chunked import Chunked
from deeppcr.linear.cyclic_reduction import CyclicReduction
from deeppcr.linear.pcr import ParallelCyclicReduction
from deeppcr.linear.prefix_scan import PrefixScan
from deeppcr.linear.recurrence import Recurrence
from deeppcr.linear.sharded import Sharded, solver_on
from deeppcr.linear.solve import solve_bidiagonal, solve_recurrence
from deeppcr.linear.solver import LinearSolver

__all__ = [
    "SOLVERS",
    "Auto",
    "BlockDiagonals",
    "Blocks",
    "Chunked",
    "CyclicReduction",
    "Diagonals",
    "LinearSolver",
    "Matrices",
    "ParallelCyclicReduction",
    "PrefixScan",
    "Recurrence",
    "Scalars",
    "Sharded",
    "Zeros",
    "choose_parallel_solver",
    "choose_solver",
    "find_solver",
    "name_of",
    "solve_bidiagonal",
    "solve_recurrence",
    "solver_on",
]
