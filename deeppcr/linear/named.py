"""Solvers by name, the rule behind the name "auto", and the recurrence with any of them.

``y_l = A_l y_{l-1} + b_l`` is ``M y = b`` with a block bidiagonal M. Its derivative is not that of
the solver's operations:

    M dy = db - dM y,    that is    dy_l = A_l dy_{l-1} + (db_l + dA_l y_{l-1}),

the same recurrence with another right-hand side. In reverse mode it is ``M^T lam = g``, one solve
of the transposed recurrence. The gradient of ``b`` is ``lam``, and that of ``A_l`` is the outer
product of ``lam_l`` and ``y_{l-1}``, for all l at once. `deeppcr.linear.linear_map` implements
this, with derivatives of every order.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
from jax import Array

from deeppcr.arrays import like
from deeppcr.checks import check_name
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.linear_map import LinearMap, solved
from deeppcr.linear.reduction import CyclicReduction, ParallelCyclicReduction, PrefixScan
from deeppcr.linear.solver import Along, LinearSolver, Recurrence
from deeppcr.lower import longest_in_order


@dataclasses.dataclass(frozen=True)
class AutoSolver(LinearSolver):
    """The solver that `choose_solver` takes for the blocks, on the platform that runs them."""

    def resolve(self, length: int, blocks: Callable[[], Blocks]) -> LinearSolver:
        """See `LinearSolver`; where loops are the fastest, it does not ask for the blocks."""
        return Recurrence() if length <= longest_in_order() else choose_solver(blocks())

    def multiplies(self, blocks: Blocks) -> bool:
        return choose_solver(blocks).multiplies(blocks)

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        return choose_solver(blocks)._solve(blocks, b, reverse)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return choose_solver(blocks)._solve_transposed(blocks, g, reverse)


# Multiplications of a round that a GPU does in the time of the kernels which the round saves,
# estimated from published figures.
FEW_PRODUCTS = 5e7
NARROW = 16  # the size of blocks which a GPU multiplies in the time that it takes to read them

SOLVERS: dict[str, LinearSolver] = {
    "auto": AutoSolver(),
    "sequential": Recurrence(),
    "pcr": ParallelCyclicReduction(),
    "cyclic_reduction": CyclicReduction(),
    "prefix_scan": PrefixScan(),
}


def find_solver(solver: str | LinearSolver, name: str = "solver") -> LinearSolver:
    """The solver itself, or the one of that name; ``name`` of the argument in messages."""
    if isinstance(solver, LinearSolver):
        return solver
    check_name(name, solver, SOLVERS, "a solver")
    return SOLVERS[solver]


def name_of(solver: str | LinearSolver) -> str:
    """The name of a solver, or its string if it has none."""
    if isinstance(solver, str):
        return solver
    return next((name for name, named in SOLVERS.items() if named == solver), str(solver))


def choose_solver(blocks: Blocks) -> LinearSolver:
    """The rule behind "auto".

    The sequential recurrence where it is the fastest, as on a CPU; elsewhere the parallel solver
    that suits the blocks.
    """
    if blocks.length <= longest_in_order():
        return Recurrence()
    # PCR has the fewest rounds, and a round has the fewest kernels, but it does log2 L times the
    # work. Only few and narrow blocks can afford that: those of 8 x 256 separate entries and 2048
    # steps move 453 MB in PCR, 184 in cyclic reduction; 4 x 4, 64 chains of 16384 steps: 5.2 GB
    # and 0.45 (as XLA compiles them for an H200, jax 0.10.2).
    suits = pcr_suits(blocks.block_size, math.prod(blocks.vector_shape))
    return ParallelCyclicReduction() if suits else CyclicReduction()


def pcr_suits(block_size: int, entries: int) -> bool:
    """Whether PCR suits blocks of this size, for vectors of so many entries in all."""
    return entries * block_size * max(block_size, NARROW) <= FEW_PRODUCTS


def solve_recurrence(
    blocks: Blocks, b: Array, solver: LinearSolver, reverse: bool = False
) -> Array:
    """``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0``, unchecked; differentiable to every order."""
    blocks, b = like((blocks, b), blocks, b)
    if solver.is_decoupled(blocks, b):
        return b

    along = Along(reverse=reverse)
    leaves, tree = jax.tree.flatten(blocks)
    blocks_of = partial(jax.tree.unflatten, tree)
    solution = LinearMap(
        lambda arrays, x: solver.solve(blocks_of(arrays), x[0], reverse),
        lambda arrays, g: (solver.solve_transposed(blocks_of(arrays), g, reverse), ()),
        lambda arrays, x: along.clear_first(blocks_of(arrays).apply(along.shift(x[0], 1))),
    )
    return solved(solution, leaves, (b, ()))
