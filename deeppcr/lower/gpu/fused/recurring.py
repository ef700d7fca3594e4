"""What a kernel that repeats a step has to say of itself."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.kernel import Kernel
from deeppcr.lower.gpu.fused.nvrtc import Launch
from deeppcr.lower.gpu.fused.step import FusedStep


@dataclasses.dataclass(frozen=True, repr=False)
class Recurring(ABC):
    """A kernel that repeats a step.

    Attributes:
        step: the step.
        length: the number of steps.
        reverse: whether the first step takes the last entry of the inputs.
    """

    step: FusedStep
    length: int
    reverse: bool

    @property
    @abstractmethod
    def text(self) -> Kernel:
        """The kernel, and how it is started."""

    @property
    @abstractmethod
    def in_trial(self) -> int:
        """Steps of a chain in which all of the kernel runs."""

    @property
    def residual(self) -> float:
        """How far a state may be from the step of the one before, of the size of its entries."""
        return 0.0

    @abstractmethod
    def have_steps(self, count: int) -> list[bool]:
        """Which of ``count`` results have an axis of steps: first of these are the states."""

    @abstractmethod
    def run(self, launch: Launch, results: Sequence[Any], operands: Sequence[Any]) -> Leaves:
        """The results, of these types, of states, inputs of all steps and captured arrays."""
