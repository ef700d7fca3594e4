"""Which solver: by name, and the rule behind the name "auto"."""

import dataclasses

import jax
from jax import Array

from deeppcr.linear.blocks import Blocks, Dense
from deeppcr.linear.chunked import Chunked
from deeppcr.linear.cyclic_reduction import CyclicReduction
from deeppcr.linear.pcr import ParallelCyclicReduction
from deeppcr.linear.prefix_scan import PrefixScan
from deeppcr.linear.recurrence import Recurrence
from deeppcr.linear.solver import LinearSolver


@dataclasses.dataclass(frozen=True)
class Auto(LinearSolver):
    """The solver that was fastest for blocks like these on a machine like this one."""

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        return choose_solver(blocks, jax.default_backend())._solve(blocks, b, reverse)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return choose_solver(blocks, jax.default_backend())._solve_transposed(blocks, g, reverse)


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
    if not isinstance(solver, str):
        raise TypeError(f"solver is {solver!r}, expected a solver or one of the names {', '.join(SOLVERS)}.")
    if solver not in SOLVERS:
        raise ValueError(f"solver is {solver!r}; the known names are {', '.join(SOLVERS)}.")
    return SOLVERS[solver]


def choose_solver(blocks: Blocks, platform: str) -> LinearSolver:
    """The rule behind "auto"."""
    if platform == "cpu":
        return Recurrence()
    # One launch a round: PCR has the fewest; dense products of wide blocks are worth saving instead.
    return CyclicReduction() if isinstance(blocks, Dense) and blocks.width > 8 else ParallelCyclicReduction()
