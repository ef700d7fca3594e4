"""A jaxpr as a graph of max-plus algebra: the time of each value, and the path that determines it.

Values are numbered: slot 0 is the start of the program, at depth 0, where literals and constants
come from; then the inputs; then the results in order.  A node adds a fixed depth to the latest of
its operands, or, if it contains programs (a call, a loop, branches), is a `Transfer`, whose matrix
contains the delay of each result after each operand.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from depth.jaxprs import Location, location
from depth.maxplus import Algebra, Array

START = 0

# The multiplicity of an item on the followed paths, by (output, source); a source is a slot
# of the inputs, or START.
Wanted = Counter[tuple[int, int]]


class Transfer(Protocol):
    """A node with inner programs, as a max-plus map from its operands to its results."""

    longest: int  # no path through it is deeper

    def matrix(self, algebra: Algebra) -> Array:
        """``[results, 1 + operands]``.

        The longest paths from START and from each operand to each result.
        """

    def explain(self, algebra: Algebra, wanted: Wanted) -> "list[tuple[Block, Wanted]]":
        """The paths inside its programs that are parts of the paths ``wanted``."""


class Node(NamedTuple):
    """An equation, or a part of one.

    ``results`` are ready ``depth`` after the latest of ``operands``.
    """

    equation: Any
    operands: tuple[int, ...]
    results: tuple[int, ...]
    depth: int
    transfer: Transfer | None = None


class Totals(NamedTuple):
    """Sums over all equations of a program."""

    work: int = 0
    bytes: int = 0

    def __add__(self, other: Any) -> "Totals":
        return Totals(self.work + other.work, self.bytes + other.bytes)

    def times(self, count: int) -> "Totals":
        """The sums, times ``count``."""
        return Totals(self.work * count, self.bytes * count)


@dataclass(eq=False)
class Block:
    """The graph of one jaxpr. ``order`` increases from programs to those that contain them."""

    jaxpr: Any
    caller: Location  # stands for equations without a line of their own
    order: int
    inputs: int
    nodes: list[Node]
    outputs: list[int]  # the slots of the jaxpr's results
    references: dict[int, int]  # input -> the slot of what a mutable reference holds in the end
    slots: int
    totals: Totals
    _matrix: Array | None = None

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

    def matrix(self, algebra: Algebra) -> Array:
        """``[results, 1 + inputs]``.

        The longest path from START and from each input to each of `ends`.
        """
        if self._matrix is None:
            self._matrix = self._longest_paths(algebra)
        return self._matrix

    def _longest_paths(self, algebra: Algebra) -> Array:
        rows: list[Array] = [None] * self.slots
        rows[: self.inputs + 1] = list(algebra.identity(self.inputs + 1))
        last_use = {slot: k for k, node in enumerate(self.nodes) for slot in node.operands}
        kept = set(self.ends) | {START}
        for k, node in enumerate(self.nodes):
            operands = [rows[slot] for slot in node.operands]
            if node.transfer:
                stacked = np.stack([rows[START], *operands])
                results = list(algebra.product(node.transfer.matrix(algebra), stacked))
            else:
                row = operands[0]
                for other in operands[1:]:
                    row = np.maximum(row, other)
                results = [row + node.depth if node.depth else row] * len(node.results)
            for slot, row in zip(node.results, results, strict=True):
                rows[slot] = row
            for slot in node.operands:
                if last_use[slot] == k and slot not in kept:
                    rows[slot] = None
        ends = [rows[slot] for slot in self.ends]
        return algebra.tidy(np.stack(ends)) if ends else algebra.nothing(0, self.inputs + 1)

    def ready(self, algebra: Algebra, starts: Sequence[int]) -> list[int]:
        """The time of each slot, if START and the inputs are at ``starts``."""
        ready = [algebra.never] * self.slots
        ready[: len(starts)] = starts
        for node in self.nodes:
            if node.transfer:
                matrix = node.transfer.matrix(algebra)
                late = np.array(
                    [ready[START], *(ready[slot] for slot in node.operands)], matrix.dtype
                )
                results = (matrix + late).max(axis=1).tolist() if len(matrix) else []
                for slot, value in zip(node.results, results, strict=True):
                    ready[slot] = max(value, algebra.never)
            else:
                value = max([ready[slot] for slot in node.operands]) + node.depth
                for slot in node.results:
                    ready[slot] = value
        return ready

    def explain(self, algebra: Algebra, wanted: Wanted) -> tuple[Counter[int], dict[int, Wanted]]:
        """The multiplicity of each node on the paths ``wanted``, and the paths inside nodes."""
        visits: Counter[int] = Counter()
        inside: dict[int, Wanted] = defaultdict(Counter)
        for source in {source for _, source in wanted}:
            starts = [algebra.never] * (self.inputs + 1)
            starts[source] = 0
            ends: Counter[int] = Counter()
            for (output, origin), count in wanted.items():
                if origin == source:
                    ends[self.ends[output]] += count
            more_visits, more_inside = self.follow(algebra, self.ready(algebra, starts), ends)
            visits += more_visits
            for k, paths in more_inside.items():
                inside[k] += paths
        return visits, inside

    def follow(
        self, algebra: Algebra, ready: list[int], ends: Counter[int]
    ) -> tuple[Counter[int], dict[int, Wanted]]:
        """As `explain`, for paths to the slots ``ends``.

        It goes back along the operand that determines the time of each value.
        """
        visits: Counter[int] = Counter()
        inside: dict[int, Wanted] = defaultdict(Counter)
        for k in reversed(range(len(self.nodes))):
            node = self.nodes[k]
            for output, slot in enumerate(node.results):
                count = ends.pop(slot, 0)
                if not count:
                    continue
                if node.transfer is None:
                    visits[k] += count
                    ends[max(node.operands, key=ready.__getitem__)] += count
                    continue
                operands = (START, *node.operands)
                row = node.transfer.matrix(algebra)[output].tolist()
                source = next(
                    i for i, slot_ in enumerate(operands) if row[i] + ready[slot_] == ready[slot]
                )
                inside[k][output, source] += count
                ends[operands[source]] += count
        return visits, inside


def explain(algebra: Algebra, top: Block, output: int) -> list[tuple[Node, Location, int]]:
    """The nodes on a longest path to ``output`` of ``top``, with their lines and multiplicities.

    Inputs are ready at depth 0. A program that several others contain is followed once, with the
    paths of all of them.
    """
    counts: Counter[tuple[int, int]] = Counter()
    blocks: dict[int, Block] = {}
    pending: dict[Block, Wanted] = defaultdict(Counter)

    def hand_down(block: Block, visits: Counter[int], inside: dict[int, Wanted]) -> None:
        blocks[block.order] = block
        counts.update({(block.order, k): count for k, count in visits.items()})
        for k, wanted in inside.items():
            transfer = block.nodes[k].transfer
            assert transfer is not None
            for part, paths in transfer.explain(algebra, wanted):
                pending[part] += paths

    ready = top.ready(algebra, [0] * (top.inputs + 1))
    hand_down(top, *top.follow(algebra, ready, Counter({top.ends[output]: 1})))
    while pending:
        block = max(pending, key=lambda block: block.order)
        hand_down(block, *block.explain(algebra, pending.pop(block)))
    found = [
        (blocks[order].nodes[k], blocks[order].caller, count)
        for (order, k), count in counts.items()
    ]
    return [(node, location(node.equation, caller), count) for node, caller, count in found]
