"""A solve by Newton's method that is one kernel on a GPU, and another elsewhere.

Its program for other readers, such as `depth`, is that of other platforms; so are its derivatives,
which a solve has of its own, and does not ask for. Under `jax.vmap` the examples are a batch axis
of the kernel, where it can have one.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import jax

from deeppcr.arrays import Leaves
from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.call import call
from deeppcr.lower.gpu.fused.kernel import FusedScan
from deeppcr.lower.gpu.fused.nvrtc import CudaKernel, Launch, largest_cluster
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.lower.gpu.fused.windows import Grid, SolvedBelow, kernel_of

OF_CHAINS = 3  # results for each chain, after the states
# Iterations: of chains that forget, GRUs take 5 to 7, layers 8.
_EXPECTED: ContextVar[int] = ContextVar("expected", default=7)


@contextmanager
def expecting(iterations: int) -> Iterator[None]:
    """Set the iteration count that `depth` assumes for a kernel."""
    token = _EXPECTED.set(iterations)
    try:
        yield
    finally:
        _EXPECTED.reset(token)


@dataclasses.dataclass(frozen=True, repr=False)
class FusedSolve(FusedScan):
    """A kernel that solves: see `FusedScan`. After the states it has three results of each chain.

    Attributes:
        below: when a window is solved.
        usual: the iterations that a nonlinear chain is expected to take.

    Raises:
        CannotFuse: there is no kernel; the message says why.
    """

    below: SolvedBelow
    usual: int = dataclasses.field(default_factory=_EXPECTED.get)

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or not self.length:
            raise CannotFuse(f"a chain has {self.length} steps")
        self.text  # noqa: B018 - which may raise

    def __repr__(self) -> str:
        return "fused_solve"

    @cached_property
    def text(self) -> CudaKernel:
        """See `FusedScan`."""
        return kernel_of(self.step, self.length, self.reverse, self.below, largest_cluster())

    @property
    def instructions(self) -> int:
        """Of all threads, with a derivative as long as the step for each entry."""
        step = self.step
        of_pass = self.length * step.count * step.lanes * step.instructions * (1 + step.width)
        return self._passes * of_pass

    @property
    def waits(self) -> int:
        """Latency of all windows, in operations."""
        grid = Grid.of(self.step, self.length, self.text.cluster)
        in_order = self.length * self.step.waits if self._passes < self._expected else 0
        return self._passes * grid.rounds(self.length) * limits.ITERATION_LATENCY + in_order

    @property
    def _expected(self) -> int:
        """The iterations that the chain is expected to take."""
        return 2 if self.below.update == math.inf else self.usual

    @property
    def _passes(self) -> int:
        """The iterations in each window, which ends step by step if more are needed."""
        return min(self._expected, self.below.iterations)

    @property
    def in_trial(self) -> int:
        """See `FusedScan`: the steps of some windows, of a cluster if the chain has one."""
        return limits.TRIED_STEPS

    @property
    def residual(self) -> float:
        """See `FusedScan`: that of a window which is solved."""
        return max(self.below.residual, self.below.standing)

    def run(self, launch: Launch, results: Sequence[Any], operands: Sequence[Any]) -> Leaves:
        """See `FusedScan`."""
        states, of_chains = results[:-OF_CHAINS], results[-OF_CHAINS:]
        of_examples = [jax.ShapeDtypeStruct((self.step.count,), x.dtype) for x in of_chains]
        types = [*states, *of_examples]
        *states, iterations, prefix, residual = launch(self.text, self.step.read(operands), types)
        shape = *of_chains[0].shape, -1
        return [
            *states,
            iterations.reshape(shape).max(-1),
            prefix.reshape(shape).min(-1),
            residual.reshape(shape).max(-1),
        ]


def fused_solve(
    solve: FusedSolve,
    otherwise: Callable[..., Leaves],
    states: Leaves,
    inputs: Leaves,
    captured: Leaves,
) -> Leaves:
    """The states of all steps, ``[length, ...]``, by Newton's method, and how they were found.

    The last three results are scalars: int32 the iterations, int32 the number of states before the
    first that was computed step by step, and float32 the largest residual, relative to the size of
    an entry. ``otherwise``: the same of the states, inputs and captured arrays, for other
    platforms.
    """
    return call(solve, otherwise, [*states, *inputs, *captured])
