"""Solvers by name, and the rule behind the name "auto"."""

import dataclasses
import math
from collections.abc import Callable

from jax import Array

from deeppcr.checks import check_name
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.reduction import CyclicReduction, ParallelCyclicReduction, PrefixScan
from deeppcr.linear.solver import LinearSolver, Recurrence
from deeppcr.lower import target


@dataclasses.dataclass(frozen=True)
class Auto(LinearSolver):
    """The solver that `choose_solver` takes for the blocks, on the platform that runs them."""

    def chosen(self, blocks: Callable[[], Blocks]) -> LinearSolver:
        """See `LinearSolver`; a CPU does not ask for the blocks."""
        return choose_solver(blocks()) if target().launches else Recurrence()

    def multiplies(self, blocks: Blocks) -> bool:
        return choose_solver(blocks).multiplies(blocks)

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        return choose_solver(blocks)._solve(blocks, b, reverse)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return choose_solver(blocks)._solve_transposed(blocks, g, reverse)


FEW_STEPS = 4  # chains up to this length are solved step by step
# Multiplications of a round that a GPU does in the time of the kernels which the round saves,
# estimated from published figures; and the size of blocks which it multiplies in the time that it
# takes to read them.
FEW_PRODUCTS, NARROW = 5e7, 16

SOLVERS: dict[str, LinearSolver] = {
    "auto": Auto(),
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
    return next((name for name, known in SOLVERS.items() if known == solver), str(solver))


def choose_solver(blocks: Blocks) -> LinearSolver:
    """The rule behind "auto".

    On a CPU the sequential recurrence, elsewhere the parallel solver that suits the blocks.
    """
    # On a CPU no parallel solver has beaten the sequential one (jax 0.10.2, 2 cores, 2000 to 8192
    # steps): the best takes as long for 1x1 blocks, 2 to 8 times as long for blocks of 2x2 to
    # 64x64, and 1 to 2.5 times as long for diagonal ones. On a GPU a sequential step costs at least
    # one kernel launch, whatever its size.
    if not target().launches or blocks.length <= FEW_STEPS:
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
