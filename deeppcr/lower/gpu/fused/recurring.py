"""A kernel: its text, how it is started, and what one that repeats a step says of itself."""

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.step import FusedStep


class CudaKernel(NamedTuple):
    """A kernel, and how it is started.

    Attributes:
        text: in CUDA C: ``kernel(*operands, *last, *outputs)``, of the operands that a step uses.
        blocks: of threads.
        threads: of a block.
        cluster: the number of blocks that work on one example; 0 where each thread has its own.
        ahead: steps that are read ahead, and between two tests of the loop.
    """

    text: str
    blocks: int
    threads: int
    cluster: int = 0
    ahead: int = 1

    @property
    def name(self) -> str:
        """Of its own, so that a profile tells kernels apart, and nothing takes one for another."""
        kind = "solve" if self.cluster else "scan"
        return f"fused_{kind}_{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


Launch = Callable[[CudaKernel, Sequence[Any], Sequence[Any]], list[Any]]
"""``(kernel, operands, types of the results) -> results``, in a program."""


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
    def text(self) -> CudaKernel:
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
