"""A solve by Newton's method that is one kernel on a GPU, and another elsewhere.

Its program for other readers, such as `depth`, is that of other platforms; so are its derivatives,
which a solve has of its own, and does not ask for. Under `jax.vmap` the examples are a batch axis
of the kernel, where it can have one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Self

import jax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.call import kernel_call_p
from deeppcr.lower.gpu.fused.kernel import Kernel
from deeppcr.lower.gpu.fused.nvrtc import Launch, largest_cluster
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.lower.gpu.fused.step import FusedStep
from deeppcr.lower.gpu.fused.windows import Grid, SolvedBelow, kernel_of
from deeppcr.programs.calls import with_operands

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


class FusedSolve(NamedTuple):
    """A kernel that solves: see `Recurring`.

    Attributes:
        step: without outputs of its own.
        below: when a window is solved.
        length: the number of steps, at least 1.
        reverse: whether the first step takes the last entry of the inputs.
        text: of the kernel, and how it is started.
        expected: the iterations that the chain is expected to take.
    """

    step: FusedStep
    below: SolvedBelow
    length: int
    reverse: bool
    text: Kernel
    expected: int

    def __repr__(self) -> str:
        return "fused_solve"

    @classmethod
    def of(cls, step: FusedStep, below: SolvedBelow, length: int, reverse: bool = False) -> Self:
        """That of a step whose outputs are its next state.

        Raises:
            CannotFuse: there is no kernel; the message says why.
        """
        if not isinstance(length, int) or not length:
            raise CannotFuse(f"a chain has {length} steps")
        text = kernel_of(step, length, reverse, below, largest_cluster())
        expected = 2 if below.update == math.inf else _EXPECTED.get()
        return cls(step, below, length, reverse, text, expected)

    @property
    def instructions(self) -> int:
        """Of all threads, with a derivative as long as the step for each entry."""
        step = self.step
        count = self.length * self.step.count
        return self._passes * count * step.lanes * step.instructions * (1 + step.width)

    @property
    def waits(self) -> int:
        """Latency of all windows, in operations."""
        grid = Grid.of(self.step, self.length, self.text.cluster)
        in_order = self.length * self.step.waits if self._passes < self.expected else 0
        return self._passes * grid.rounds(self.length) * limits.ITERATION_LATENCY + in_order

    @property
    def _passes(self) -> int:
        """The iterations in each window, which ends step by step if more are needed."""
        return min(self.expected, self.below.iterations)

    def of_step(self, step: FusedStep) -> Self:
        """See `Recurring`."""
        return self.of(step, self.below, self.length, self.reverse)

    def shortened(self, most: int) -> Self:
        """See `Recurring`: the steps of some windows, of a cluster if the chain has one."""
        return self.of(
            self.step, self.below, min(self.length, most, limits.TRIED_STEPS), self.reverse
        )

    def have_steps(self, count: int) -> list[bool]:
        """See `Recurring`."""
        return [k < count - OF_CHAINS for k in range(count)]

    @property
    def residual(self) -> float:
        """See `Recurring`: that of a window which is solved."""
        return max(self.below.residual, self.below.standing)

    def trajectory(self, results: Leaves) -> Leaves:
        """See `Recurring`."""
        return results[:-OF_CHAINS]

    def run(self, launch: Launch, results: Sequence[Any], operands: Sequence[Any]) -> Leaves:
        """See `Recurring`: by one kernel, after what is computed before it."""
        *states, counted, reached, left = results
        shape = (self.step.count,)
        each = [jax.ShapeDtypeStruct(shape, x.dtype) for x in (counted, reached, left)]
        found = launch(self.text, self.step.read(operands), [*states, *each])
        of_chains = [x.reshape(*counted.shape, -1) for x in found[-OF_CHAINS:]]
        iterations, prefix, residual = of_chains
        return [*found[:-OF_CHAINS], iterations.max(-1), prefix.min(-1), residual.max(-1)]


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
    operands = [*states, *inputs, *captured]
    closed, constants = with_operands(jax.make_jaxpr(otherwise)(*operands))
    arrays = [*constants, *operands]
    found: Leaves = kernel_call_p.bind(
        *arrays, call_jaxpr=closed, kernel=solve, first=len(constants)
    )
    return found
