"""A jaxpr as a graph of max-plus algebra: the time of each value.

Values are numbered: slot 0 is the start of the program, at depth 0, where literals and constants
come from; then the inputs; then the results in order.  A node adds a fixed depth to the latest of
its operands, or, if it contains programs (a call, a loop, branches), is a `Transfer`, whose matrix
contains the delay of each result after each operand.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
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
        seen = {self}
        waiting = [self]
        while waiting:
            block = waiting.pop()
            yield block
            for node in block.nodes:
                for inner, _ in node.transfer.runs if node.transfer else ():
                    if inner not in seen:
                        seen.add(inner)
                        waiting.append(inner)

    def matrix(self, algebra: Algebra) -> Array:
        """``[results, 1 + inputs]``.

        The longest path from START and from each input to each of `ends`.
        """
        rows = self._times(algebra, list(algebra.identity(self.inputs + 1)))
        return algebra.tidy(np.stack(rows)) if rows else algebra.nothing(0, self.inputs + 1)

    def ready(self, algebra: Algebra) -> list[int]:
        """The time of each of `ends`, if all inputs are ready at the start."""
        start = np.zeros(1, algebra.dtype)
        rows = self._times(algebra, [start] * (self.inputs + 1))
        return [max(row.tolist()[0], 0) for row in rows]

    def _times(self, algebra: Algebra, starts: list[Array]) -> list[Array]:
        """The rows of times of `ends`, given those of START and of the inputs."""
        rows: list[Array] = [*starts, *[None] * (self.slots - len(starts))]
        last_use: dict[int, int] = {}
        for k, node in enumerate(self.nodes):
            last_use.update(dict.fromkeys(node.operands, k))
        kept = set(self.ends) | {START}
        for k, node in enumerate(self.nodes):
            operands = [rows[slot] for slot in node.operands]
            if node.transfer:
                stacked = np.stack([rows[START], *operands])
                results = list(algebra.product(algebra.of(node.transfer), stacked))
            else:
                row = reduce(np.maximum, operands)
                results = [row + algebra.weight(node) if node.depth else row] * len(node.results)
            for slot, row in zip(node.results, results, strict=True):
                rows[slot] = row
            for slot in node.operands:
                if last_use[slot] == k and slot not in kept:
                    rows[slot] = None
        return [rows[slot] for slot in self.ends]


# -- calls, branches and loops, each as one max-plus matrix ----------------------------------------


@dataclass(eq=False)
class CalledProgram(Transfer):
    """One program, run once.

    Input i of it is the operand ``sources[i]`` (None: START), result j its end ``results[j]``.
    """

    block: Block
    operands: int
    sources: Sequence[int | None]
    results: Sequence[int]
    times: int = 1  # the work counts so often: programs side by side

    @property
    def runs(self) -> Sequence[tuple[Block, int]]:
        """The program."""
        return ((self.block, self.times),)

    def matrix(self, algebra: Algebra) -> Array:
        """The matrix of the program, with its inputs mapped to the operands."""
        outer = algebra.nothing(len(self.results), 1 + self.operands)
        if self.results:
            inner = algebra.of(self.block)[list(self.results)]
            for source, operand in enumerate([None, *self.sources]):
                column = START if operand is None else 1 + operand
                outer[:, column] = np.maximum(outer[:, column], inner[:, source])
        return outer


@dataclass(eq=False)
class Branches(Transfer):
    """One of several programs: operand 0 is the index, and the programs start after it.

    A result waits for the index, and for the operands that any branch uses for it; the deepest
    branch counts.
    """

    blocks: Sequence[Block]

    @property
    def runs(self) -> Sequence[tuple[Block, int]]:
        """The programs."""
        return [(block, 1) for block in self.blocks]

    @property
    def totals(self) -> Totals:
        """The work of the branch with the most, and the traffic of the one with the most."""
        return Totals(*map(max, zip(*(block.totals for block in self.blocks), strict=True)))

    def matrix(self, algebra: Algebra) -> Array:
        """The latest of the branches, entry by entry.

        The index is as late as the latest entry of a row.
        """
        outputs = len(self.blocks[0].outputs)
        latest = algebra.nothing(outputs, self.blocks[0].inputs + 1)
        for block in self.blocks:
            latest = np.maximum(latest, algebra.of(block)[:outputs])
        return np.concatenate(
            [algebra.nothing(outputs, 1), latest.max(axis=1, keepdims=True), latest[:, 1:]], axis=1
        )


def _joined(parts: tuple[Array, Array], state: slice) -> Array:
    """One matrix over START and the operands, of those from the state and from the others."""
    from_state, from_others = parts
    before, after = from_others[:, : state.start], from_others[:, state.start :]
    return np.concatenate([before, from_state, after], axis=1)


@dataclass(eq=False)
class Scan(Transfer):
    """`jax.lax.scan` as its unrolled program, whatever its length.

    Operands: ``consts``, ``carry``, then ``xs``.

    A stacked result is as late as the latest of its slices: ``y = D state (+) E others`` over all
    states before a step.
    """

    block: Block
    consts: int
    carry: int
    trips: int
    unroll: int = 1  # steps in a trip of the loop that is compiled; depth and work are the same

    @property
    def runs(self) -> Sequence[tuple[Block, int]]:
        """The body."""
        return ((self.block, self.trips),)

    def matrix(self, algebra: Algebra) -> Array:
        """The matrix of the unrolled program."""
        state = slice(1 + self.consts, 1 + self.consts + self.carry)
        body = algebra.of(self.block)[: len(self.block.outputs)]
        from_state = body[:, state]
        from_others = np.delete(body, state, axis=1)
        a, d = np.split(from_state, [self.carry])
        b, e = np.split(from_others, [self.carry])
        last, latest = algebra.repeat(a, b, self.trips)
        if self.trips:
            before = algebra.product(d, latest[0]), algebra.product(d, latest[1])
            stacked = before[0], np.maximum(e, before[1])
        else:  # of no slices: nothing to wait for
            stacked = algebra.nothing(*d.shape), algebra.nothing(*e.shape)
            stacked[1][:, START] = 0
        return np.concatenate([_joined(each, state) for each in (last, stacked)])


@dataclass(eq=False)
class While(Transfer):
    """`jax.lax.while_loop`. Operands: the condition's constants, the body's, then the state.

    Each trip starts after the condition that allows it, and the results wait for the one that ends
    the loop.

    If the number of trips is unknown, ``trips`` is 0, and the matrix is the minimum over all
    numbers of trips of every path, so the depth is a lower bound. The first condition is always
    waited for, and later ones are no earlier. With no trip, a value of the state is unchanged, with
    no path from any other; after one trip only the output of the body remains. So it has a path to
    the end only if the body reads it for its next value.
    """

    condition: Block
    body: Block
    condition_consts: int
    body_consts: int
    trips: int
    proven: bool = False  # the program knows the number of trips before it starts
    known: bool = True  # the number of trips

    @property
    def runs(self) -> Sequence[tuple[Block, int]]:
        """The condition, which also ends the loop, and the body."""
        return (self.condition, self.trips + 1), (self.body, self.trips)

    def matrix(self, algebra: Algebra) -> Array:
        """The state after all trips, and after the condition that ends the loop."""
        carried = len(self.body.outputs)
        first = 1 + self.condition_consts + self.body_consts
        state = slice(first, first + carried)
        # The condition's row and the body's rows, over START and all operands.
        condition, body = algebra.nothing(1, state.stop), algebra.nothing(carried, state.stop)
        own = [START, *range(1, 1 + self.condition_consts), *range(first, state.stop)]
        condition[:, own] = algebra.of(self.condition)[:1]
        own = [START, *range(1 + self.condition_consts, state.stop)]
        body[:, own] = algebra.of(self.body)[:carried]
        latest = body.max(axis=1, keepdims=True, initial=algebra.never)
        trip = algebra.tidy(np.maximum(body, latest + condition))
        trips = self.trips if self.known or not algebra.all_trips else carried + 1
        last, latest = algebra.repeat(trip[:, state], trip[:, :first], trips)
        after = _joined(latest if trips > self.trips else last, state)
        if not self.known and not algebra.all_trips:
            after[np.diagonal(trip[:, state]) < algebra.threshold] = algebra.never
        ending = algebra.product(condition[:, state], after)
        ending[:, :first] = np.maximum(ending[:, :first], condition[:, :first])
        return np.maximum(after, ending)
