"""A recurrence that is one kernel on a GPU, and `jax.lax.scan` elsewhere.

Its program for other readers, such as `depth`, is that of `jax.lax.scan`; so are its derivatives. A
solve has its own, and does not ask for them.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax import lax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.call import call
from deeppcr.lower.gpu.fused.kernel import kernel_of
from deeppcr.lower.gpu.fused.recurring import CudaKernel, Launch, Recurring
from deeppcr.lower.gpu.fused.step import FusedStep, flat
from deeppcr.programs.cut_first import apply


class FusedScan(Recurring):
    """A kernel that computes step after step, with the outputs of the step: see `Recurring`."""

    def __repr__(self) -> str:
        return "fused_scan"

    @property
    def text(self) -> CudaKernel:
        """See `Recurring`."""
        return kernel_of(self.step, self.length, self.reverse)

    @property
    def instructions(self) -> int:
        """Of all threads."""
        return self.length * self.step.instructions * self.step.threads

    @property
    def waits(self) -> int:
        """Latency of all steps, in operations."""
        return self.length * self.step.waits

    @property
    def in_trial(self) -> int:
        """See `Recurring`: two trips of its loop, and what is left after all of them."""
        ahead = self.text.ahead
        return 2 * ahead + self.length % ahead

    def have_steps(self, count: int) -> list[bool]:
        """See `Recurring`."""
        return [k >= self.step.states for k in range(count)]

    def run(self, launch: Launch, results: Sequence[Any], operands: Sequence[Any]) -> Leaves:
        """See `Recurring`: by one kernel, after what is computed before it."""
        return launch(self.text, self.step.read(operands), results)


def fused_scan(
    step: FusedStep, states: Leaves, inputs: Leaves, captured: Leaves, reverse: bool, length: int
) -> tuple[Leaves, Leaves]:
    """The last state, and the outputs of all steps, ``[length, ...]``, from the initial state.

    The first outputs of ``step`` are its state: by these a kernel is tried. ``reverse``: whether
    the first step takes the last entry of the inputs.
    """
    program = partial(_scan, step, reverse, length)
    results = call(FusedScan(step, length, reverse), program, [*states, *inputs, *captured])
    return results[: step.states], results[step.states :]


def _scan(step: FusedStep, reverse: bool, length: int, *operands: Any) -> Leaves:
    states, end = step.states, len(step.whole.invars)
    program = flat(step.whole)
    captured = operands[end:]

    def body(state: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        results = apply(program, [*state, *x, *captured])
        return results[:states], results[states:]

    inputs = list(operands[states:end])
    last, outputs = lax.scan(body, list(operands[:states]), inputs, length, reverse)
    return [*last, *outputs]
