"""Which solver: by name, and the rule behind the name "auto"."""

import dataclasses
import math

from jax import Array

from deeppcr.checks import check_name
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.chunked import Chunked
from deeppcr.linear.cyclic_reduction import CyclicReduction
from deeppcr.linear.pcr import ParallelCyclicReduction
from deeppcr.linear.prefix_scan import PrefixScan
from deeppcr.linear.recurrence import Recurrence
from deeppcr.linear.solver import LinearSolver
from deeppcr.platforms import platform


@dataclasses.dataclass(frozen=True)
class Auto(LinearSolver):
    """The solver that was fastest for blocks like these on a machine like this one."""

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        return choose_solver(blocks, platform())._solve(blocks, b, reverse)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return choose_solver(blocks, platform())._solve_transposed(blocks, g, reverse)

    def _composes(self, blocks: Blocks) -> bool:
        return choose_solver(blocks, platform())._composes(blocks)


FEW_STEPS = 4  # not worth a round
NARROW = 8
FEW_PRODUCTS = 5e7  # multiplications of a round that a GPU does in the time of the kernels that it saves, by published figures

SOLVERS: dict[str, LinearSolver] = {
    "auto": Auto(),
    "sequential": Recurrence(),
    "pcr": ParallelCyclicReduction(),
    "cyclic_reduction": CyclicReduction(),
    "prefix_scan": PrefixScan(),
    "chunked": Chunked(),
}


def find_solver(solver: str | LinearSolver) -> LinearSolver:
    """The solver itself, or the one of that name."""
    if isinstance(solver, LinearSolver):
        return solver
    check_name("solver", solver, SOLVERS, "a solver")
    return SOLVERS[solver]


def name_of(solver: str | LinearSolver) -> str:
    """The name of a solver, or how it is written if it has none."""
    if isinstance(solver, str):
        return solver
    return next((name for name, known in SOLVERS.items() if known == solver), str(solver))


def choose_solver(blocks: Blocks, where: str) -> LinearSolver:
    """The rule behind "auto": on a CPU the sequential recurrence, elsewhere the parallel solver that suits the blocks.

    On a CPU no parallel solver has beaten the sequential one: with 2 cores and 2000 to 8192 steps, the best
    of them took as long for 1x1 blocks, 2 to 8 times as long for blocks of 2x2 to 64x64, and 1 to 2.5 times
    as long for diagonal ones. On a GPU a sequential step costs a kernel launch whatever its size (8 to 10 us
    for a step of `jax.lax.scan`, by others' logs).
    """
    if where == "cpu" or blocks.length <= FEW_STEPS:
        return Recurrence()
    return choose_parallel_solver(blocks)


def choose_parallel_solver(blocks: Blocks) -> LinearSolver:
    """The parallel solver that suits the blocks, where rounds cost more than work.

    PCR has the fewest rounds, each of fewer kernels, and log2 L times the work, which only narrow blocks and short chains can
    afford. What counts is how many entries are coupled: many narrow blocks on the diagonal are a batch.
    """
    products = math.prod(blocks.vector_shape) * blocks.coupled**2
    return (
        ParallelCyclicReduction()
        if blocks.coupled <= NARROW or products <= FEW_PRODUCTS
        else CyclicReduction()
    )
