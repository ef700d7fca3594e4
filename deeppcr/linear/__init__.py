"""The linear recurrence ``y_l = A_l y_{l-1} + b_l``: one file for each way to solve it.

For users, checked and differentiable:

    solve_bidiagonal(A, b, *, initial=None, solver="auto", reverse=False) -> y

For the rest of deeppcr, unchecked, with ``blocks: Blocks`` (`Matrices(matrix)`, `Diagonals(diagonal)`) and
vectors ``[L, *batch, w]``:

    solve_recurrence(blocks, b, solver, reverse=False) -> y     differentiable to every order
    solver.solve(blocks, b, reverse=False) -> y                 y_l = A_l y_{l-1} + b_l, y_0 = 0; not for differentiation
    solver.solve_transposed(blocks, g, reverse=False) -> lam    lam_l = g_l + A_{l+1}^T lam_{l+1}, lam_{L+1} = 0, for the
                                                                adjoint: the transpose of ``solve``, same arguments
    find_solver("auto" | "sequential" | ... | solver) -> solver

To start a recurrence at y_0, add ``A_1 y_0`` to ``b_1``. Blocks of the first step are otherwise ignored. A
new solver is one file with a `LinearSolver` and one line in `choose.SOLVERS`; a new kind of block is one
class in `blocks`.
"""

from deeppcr.linear.blocks import Blocks, Diagonals, Matrices
from deeppcr.linear.choose import SOLVERS, Auto, choose_solver, find_solver
from deeppcr.linear.chunked import Chunked
from deeppcr.linear.cyclic_reduction import CyclicReduction
from deeppcr.linear.pcr import ParallelCyclicReduction
from deeppcr.linear.prefix_scan import PrefixScan
from deeppcr.linear.recurrence import Recurrence
from deeppcr.linear.solve import solve_bidiagonal, solve_recurrence
from deeppcr.linear.solver import LinearSolver

__all__ = [
    "SOLVERS",
    "Auto",
    "Blocks",
    "Chunked",
    "CyclicReduction",
    "Diagonals",
    "LinearSolver",
    "Matrices",
    "ParallelCyclicReduction",
    "PrefixScan",
    "Recurrence",
    "choose_solver",
    "find_solver",
    "solve_bidiagonal",
    "solve_recurrence",
]
