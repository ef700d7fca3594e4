"""A jaxpr as a graph of max-plus algebra: the time of each value.

Values are numbered: slot 0 is the start of the program, at depth 0, where literals and constants
come from; then the inputs; then the results in order.  A node adds a fixed depth to the latest of
its operands, or, if it contains programs (a call, a loop, branches), is a `Transfer`, whose matrix
contains the delay of each result after each operand.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from depth.jaxprs import Location
from depth.maxplus import Algebra, Array

START = 0


class Totals(NamedTuple):
    """Sums over all equations of a program."""

    work: int = 0
    bytes: int = 0

    def __add__(self, other: Any) -> "Totals":
        return Totals(self.work + other.work, self.bytes + other.bytes)

    def times(self, count: int) -> "Totals":
        """The sums, times ``count``."""
        return Totals(self.work * count, self.bytes * count)


class Transfer(ABC):
    """A node with inner programs, as a max-plus map from its operands to its results."""

    @property
    @abstractmethod
    def runs(self) -> "Sequence[tuple[Block, int]]":
        """The inner programs, with the number of times that each runs."""

    @property
    def longest(self) -> int:
        """No path through it is deeper."""
        return sum(block.longest * count for block, count in self.runs)

    @property
    def totals(self) -> Totals:
        """The totals of all that runs."""
        return sum((block.totals.times(count) for block, count in self.runs), Totals())

    @abstractmethod
    def matrix(self, algebra: Algebra) -> Array:
        """``[results, 1 + operands]``.

        The longest paths from START and from each operand to each result.
        """


class Node(NamedTuple):
    """An equation, or a part of one.

    ``results`` are ready ``depth`` after the latest of ``operands``.
    """

    equation: Any
    operands: tuple[int, ...]
    results: tuple[int, ...]
    depth: int
    transfer: Transfer | None = None


@dataclass(eq=False)
class Block:
    """The graph of one jaxpr."""

    jaxpr: Any
    caller: Location  # stands for equations without a line of their own
    inputs: int
    nodes: list[Node]
    outputs: list[int]  # the slots of the jaxpr's results
    references: dict[int, int]  # input -> the slot of what a mutable reference holds in the end
    slots: int
    totals: Totals

    @cached_property
    def longest(self) -> int:
        """An upper bound on the depth of any path."""
        return sum(
            node.depth + (node.transfer.longest if node.transfer else 0) for node in self.nodes
        )

    @property
    def ends(self) -> list[int]:
        """The slots of the results, then of the mutable references that came in."""
        return [*self.outputs, *self.references.values()]

    def programs(self) -> "Iterator[Block]":
        """This program and those inside it, each once."""
        found, waiting = {self}, [self]
        while waiting:
            block = waiting.pop()
            yield block
            held = (node.transfer.runs for node in block.nodes if node.transfer)
            new = {inner for runs in held for inner, _ in runs} - found
            found |= new
            waiting += new

    def matrix(self, algebra: Algebra) -> Array:
        """``[results, 1 + inputs]``.

        The longest path from START and from each input to each of `ends`.
        """
        rows = self._times(algebra, list(algebra.identity(self.inputs + 1)))
        return algebra.tidy(np.stack(rows)) if rows else algebra.nothing(0, self.inputs + 1)

    def ready(self, algebra: Algebra) -> list[int]:
        """The time of each of `ends`, if all inputs are ready at the start."""
        start = np.zeros(1, algebra.dtype)
        return [
            max(row.tolist()[0], 0) for row in self._times(algebra, [start] * (self.inputs + 1))
        ]

    def _times(self, algebra: Algebra, starts: list[Array]) -> list[Array]:
        """The rows of times of `ends`, given those of START and of the inputs."""
        rows: list[Array] = [*starts, *[None] * (self.slots - len(starts))]
        last_use = {slot: k for k, node in enumerate(self.nodes) for slot in node.operands}
        kept = set(self.ends) | {START}
        for k, node in enumerate(self.nodes):
            operands = [rows[slot] for slot in node.operands]
            if node.transfer:
                stacked = np.stack([rows[START], *operands])
                results = list(algebra.product(algebra.of(node.transfer), stacked))
            else:
                row = operands[0]
                for other in operands[1:]:
                    row = np.maximum(row, other)
                results = [row + algebra.weight(node) if node.depth else row] * len(node.results)
            for slot, row in zip(node.results, results, strict=True):
                rows[slot] = row
            for slot in node.operands:
                if last_use[slot] == k and slot not in kept:
                    rows[slot] = None
        return [rows[slot] for slot in self.ends]
