"""What a kernel that repeats a step has to say of itself."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.kernel import Kernel
from deeppcr.lower.gpu.fused.nvrtc import Launch
from deeppcr.lower.gpu.fused.step import FusedStep


class Recurring(Protocol):
    """A kernel that repeats a step."""

    @property
    def step(self) -> FusedStep:
        """The step."""

    @property
    def length(self) -> int:
        """The number of steps."""

    @property
    def reverse(self) -> bool:
        """Whether the first step takes the last entry of the inputs."""

    @property
    def text(self) -> Kernel:
        """The kernel, and how it is started."""

    @property
    def residual(self) -> float:
        """How far a state may be from the step of the one before, of the size of its entries."""

    def of_step(self, step: FusedStep) -> Self:
        """The same of another step.

        Raises:
            CannotFuse: there is no kernel.
        """

    def shortened(self, most: int) -> Self:
        """The same of a shorter chain, in which all of it runs, of at most so many steps."""

    def have_steps(self, count: int) -> list[bool]:
        """Which of ``count`` results have an axis of steps."""

    def trajectory(self, results: Leaves) -> Leaves:
        """The states of all steps among the results."""

    def run(self, launch: Launch, results: Sequence[Any], operands: Sequence[Any]) -> Leaves:
        """The results, of these types, of states, inputs of all steps and captured arrays."""
