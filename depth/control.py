"""Equations with inner programs.

Calls, branches and loops, each as one max-plus matrix computed from those of its programs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from depth.graph import START, Block, Totals, Wanted
from depth.maxplus import Algebra, Array, Power, where

Paths = list[tuple[Block, Wanted]]


@dataclass(eq=False)
class Call:
    """One program, run once.

    Input i of it is the operand ``sources[i]`` (None: START), result j its end ``results[j]``.
    """

    block: Block
    operands: int
    sources: Sequence[int | None]
    results: Sequence[int]
    times: int = 1  # the work counts so often: programs side by side

    @property
    def longest(self) -> int:
        """The bound of the program."""
        return self.block.longest

    @property
    def totals(self) -> Totals:
        """The totals of the program."""
        return self.block.totals.times(self.times)

    @cached_property
    def _columns(self) -> list[int]:
        return [START, *(START if operand is None else 1 + operand for operand in self.sources)]

    def matrix(self, algebra: Algebra) -> Array:
        """The matrix of the program, with its inputs mapped to the operands."""
        inner = self.block.matrix(algebra)
        outer = algebra.nothing(len(self.results), 1 + self.operands)
        if self.results:
            inner = inner[list(self.results)]
            for source, column in enumerate(self._columns):
                outer[:, column] = np.maximum(outer[:, column], inner[:, source])
        return outer

    def explain(self, algebra: Algebra, wanted: Wanted) -> Paths:
        """The same paths in the program."""
        inner = self.block.matrix(algebra)
        paths: Wanted = Counter()
        for (result, column), count in wanted.items():
            end = self.results[result]
            source = max(
                (i for i, at in enumerate(self._columns) if at == column),
                key=lambda i: inner[end, i],
            )
            paths[end, source] += count
        return [(self.block, paths)]


@dataclass(eq=False)
class Branches:
    """One of several programs: operand 0 is the index, and the programs start after it.

    A result waits for the index, and for the operands that any branch uses for it; the deepest
    branch counts.
    """

    blocks: Sequence[Block]

    @property
    def longest(self) -> int:
        """The bound of the deepest branch."""
        return max(block.longest for block in self.blocks)

    @property
    def totals(self) -> Totals:
        """The work of the branch with the most, and the traffic of the one with the most."""
        return Totals(*map(max, zip(*(block.totals for block in self.blocks), strict=True)))

    @cached_property
    def _outputs(self) -> int:
        return len(self.blocks[0].outputs)

    def matrix(self, algebra: Algebra) -> Array:
        """The latest of the branches, entry by entry.

        The index is as late as the latest entry of a row.
        """
        latest = algebra.nothing(self._outputs, self.blocks[0].inputs + 1)
        for block in self.blocks:
            latest = np.maximum(latest, block.matrix(algebra)[: self._outputs])
        return np.concatenate(
            [algebra.nothing(len(latest), 1), latest.max(axis=1, keepdims=True), latest[:, 1:]],
            axis=1,
        )

    def explain(self, algebra: Algebra, wanted: Wanted) -> Paths:
        """The paths through a branch that determines the time of the result."""
        matrix = self.matrix(algebra)
        return [self._path(algebra, pair, matrix[pair], count) for pair, count in wanted.items()]

    def _path(
        self, algebra: Algebra, pair: tuple[int, int], value: int, count: int
    ) -> tuple[Block, Wanted]:
        """A branch with a path of depth ``value``, and the path."""
        output, column = pair
        for block in self.blocks:
            row = block.matrix(algebra)[output]
            for source in range(len(row)) if column == 1 else [column - 1]:
                if row[source] == value:
                    return block, Wanted({(output, source): count})
        raise AssertionError("no branch is as late as the latest of them")


class Repeated:
    """``trips`` steps of ``state' = A state (+) B others`` in max-plus algebra.

    With ``S_t = I (+) A (+) ... (+) A^(t-1) = (I (+) A)^(t-1)``, the state after t steps is ``A^t
    state (+) S_t B others``, and the latest of the states before each of t steps ``S_t state (+)
    S_(t-1) B others``.
    """

    def __init__(self, algebra: Algebra, a: Array, b: Array, trips: int):
        self.algebra, self.a, self.b = algebra, a, b
        self.loops = np.maximum(a, algebra.identity(len(a)))
        self.power = Power(algebra, a, trips)
        self.sums = [
            Power(algebra, self.loops, t - 1) if t > 0 else None for t in (trips - 1, trips)
        ]

    @cached_property
    def last(self) -> tuple[Array, Array]:
        """The state in the end, from the state in the beginning and from the others."""
        return self.power.value, self._from_others(self.sums[1])

    @cached_property
    def latest(self) -> tuple[Array, Array]:
        """The latest state before any step, from the state in the beginning and from the others."""
        before = self.sums[1]
        return before.value if before else self.algebra.nothing(*self.a.shape), self._from_others(
            self.sums[0]
        )

    def _from_others(self, total: Power | None) -> Array:
        return (
            self.algebra.product(total.value, self.b)
            if total
            else self.algebra.nothing(*self.b.shape)
        )

    def entries(self, last: Sequence[Wanted], latest: Sequence[Wanted]) -> tuple[Wanted, Wanted]:
        """The entries of ``A`` and of ``B`` on paths to `last` and to `latest`.

        Each from the state and from the others.
        """
        in_a, in_b = self.power.entries(last[0]), Wanted()
        ways = (
            (self.sums[1], latest[0], last[1], self.last[1]),
            (self.sums[0], Wanted(), latest[1], self.latest[1]),
        )
        for total, from_state, from_others, late in ways:
            if total is None:
                continue
            inner = Wanted(from_state)
            for (i, source), count in from_others.items():
                middle = where(total.value[i], self.b[:, source], late[i, source])
                in_b[middle, source] += count
                inner[i, middle] += count
            for (i, j), count in total.entries(inner).items():
                if (
                    i != j or self.loops[i, j] > 0
                ):  # an identity's entry is a step that is not taken
                    in_a[i, j] += count
        return in_a, in_b


class _Loop:
    """The common part of scans and while loops: operands split into the state and the others."""

    trips: int
    _state: list[int]  # the columns of the state among START and the operands
    _others: list[int]

    def _spread(self, algebra: Algebra, from_state: Array, from_others: Array) -> Array:
        """One matrix over START and the operands."""
        matrix = algebra.nothing(len(from_state), len(self._state) + len(self._others))
        matrix[:, self._state], matrix[:, self._others] = from_state, from_others
        return matrix

    def _split(self, wanted: Wanted) -> tuple[Wanted, Wanted]:
        """The wanted entries of the state and of the others, each with its own indices."""
        where = {column: (0, i) for i, column in enumerate(self._state)}
        where |= {column: (1, i) for i, column in enumerate(self._others)}
        parts = Wanted(), Wanted()
        for (output, column), count in wanted.items():
            part, i = where[column]
            parts[part][output, i] += count
        return parts


@dataclass(eq=False)
class Scan(_Loop):
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
    def longest(self) -> int:
        """The bound of the body times the number of trips."""
        return self.block.longest * self.trips

    @property
    def totals(self) -> Totals:
        """The totals of the body times the number of trips."""
        return self.block.totals.times(self.trips)

    @cached_property
    def _state(self) -> list[int]:  # type: ignore[override]
        return list(range(1 + self.consts, 1 + self.consts + self.carry))

    @cached_property
    def _others(self) -> list[int]:  # type: ignore[override]
        return [
            *range(1 + self.consts),
            *range(1 + self.consts + self.carry, self.block.inputs + 1),
        ]

    def _body(self, algebra: Algebra) -> tuple[Array, Array, Array, Array]:
        """``A, B, D, E``."""
        body = self.block.matrix(algebra)[: len(self.block.outputs)]
        state, stacked = body[: self.carry], body[self.carry :]
        return (
            state[:, self._state],
            state[:, self._others],
            stacked[:, self._state],
            stacked[:, self._others],
        )

    def _repeated(self, algebra: Algebra) -> Repeated:
        if not hasattr(self, "_kept"):
            a, b, _, _ = self._body(algebra)
            self._kept = Repeated(algebra, a, b, self.trips)
        return self._kept

    def matrix(self, algebra: Algebra) -> Array:
        """The matrix of the unrolled program."""
        if not hasattr(self, "_matrix"):
            _, _, d, e = self._body(algebra)
            repeated = self._repeated(algebra)
            if self.trips:
                from_state, from_others = repeated.latest
                stacked = (
                    algebra.product(d, from_state),
                    np.maximum(e, algebra.product(d, from_others)),
                )
            else:  # of no slices: nothing to wait for
                stacked = algebra.nothing(*d.shape), algebra.nothing(*e.shape)
                stacked[1][:, START] = 0
            carried = self._spread(algebra, *repeated.last)
            self._matrix = np.concatenate([carried, self._spread(algebra, *stacked)])
        return self._matrix

    def explain(self, algebra: Algebra, wanted: Wanted) -> Paths:
        """The paths of the body in the unrolled path, and the multiplicity of each."""
        if not self.trips:
            return []
        _, _, d, e = self._body(algebra)
        repeated, matrix = self._repeated(algebra), self.matrix(algebra)
        last = self._split(
            Wanted({pair: count for pair, count in wanted.items() if pair[0] < self.carry})
        )
        latest = Wanted(), Wanted()
        paths = Wanted()
        stacked = Wanted(
            {(out - self.carry, at): n for (out, at), n in wanted.items() if out >= self.carry}
        )
        for part, (of_part, columns) in enumerate(
            zip(self._split(stacked), (self._state, self._others), strict=True)
        ):
            for (row, source), count in of_part.items():
                value = matrix[self.carry + row, columns[source]]
                if part == 1 and e[row, source] == value:
                    paths[self.carry + row, columns[source]] += count
                    continue
                middle = where(d[row], repeated.latest[part][:, source], value)
                paths[self.carry + row, self._state[middle]] += count
                latest[part][middle, source] += count
        in_a, in_b = repeated.entries(last, latest)
        for (i, j), count in in_a.items():
            paths[i, self._state[j]] += count
        for (i, j), count in in_b.items():
            paths[i, self._others[j]] += count
        return [(self.block, paths)]


@dataclass(eq=False)
class While(_Loop):
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
    def longest(self) -> int:
        """The bound of all trips and of the condition that ends the loop."""
        return (self.condition.longest + self.body.longest) * self.trips + self.condition.longest

    @property
    def totals(self) -> Totals:
        """The totals of all trips, and of the condition that ends the loop."""
        return (self.condition.totals + self.body.totals).times(self.trips) + self.condition.totals

    @cached_property
    def _others(self) -> list[int]:  # type: ignore[override]
        return list(range(1 + self.condition_consts + self.body_consts))

    @cached_property
    def _state(self) -> list[int]:  # type: ignore[override]
        first = len(self._others)
        return list(range(first, first + len(self.body.outputs)))

    def _columns(self, own: int, before: int) -> list[int]:
        """The columns of START, of ``own`` constants after ``before`` others, and of the state."""
        return [START, *range(1 + before, 1 + before + own), *self._state]

    def _programs(self, algebra: Algebra) -> tuple[Array, Array]:
        """The condition's row and the body's rows, over START and all operands."""
        width = len(self._others) + len(self._state)
        condition, body = algebra.nothing(width), algebra.nothing(len(self._state), width)
        condition[self._columns(self.condition_consts, 0)] = self.condition.matrix(algebra)[0]
        body[:, self._columns(self.body_consts, self.condition_consts)] = self.body.matrix(algebra)[
            : len(self._state)
        ]
        return condition, body

    def _trip(self, algebra: Algebra) -> Array:
        """A trip: the body, and all of it after the condition."""
        condition, body = self._programs(algebra)
        return algebra.tidy(
            np.maximum(body, body.max(axis=1, initial=algebra.never)[:, None] + condition)
        )

    def _repeated(self, algebra: Algebra) -> Repeated:
        if not hasattr(self, "_kept"):
            trip = self._trip(algebra)
            self._kept = Repeated(algebra, trip[:, self._state], trip[:, self._others], self.trips)
        return self._kept

    def _last(self, algebra: Algebra) -> Array:
        """The state after all trips."""
        state = self._spread(algebra, *self._repeated(algebra).last)
        if not self.known:
            state[np.diagonal(self._repeated(algebra).a) < algebra.threshold] = algebra.never
        return state

    def matrix(self, algebra: Algebra) -> Array:
        """The state after all trips, and after the condition that ends the loop."""
        if not hasattr(self, "_matrix"):
            state = self._last(algebra)
            self._matrix = np.maximum(state, self._ending(algebra, state))
        return self._matrix

    def _ending(self, algebra: Algebra, state: Array) -> Array:
        """The time of the last condition."""
        condition, _ = self._programs(algebra)
        ending = algebra.product(condition[None, self._state], state)[0]
        ending[self._others] = np.maximum(ending[self._others], condition[self._others])
        return ending

    def explain(self, algebra: Algebra, wanted: Wanted) -> Paths:
        """The paths of condition and body in the unrolled path, and the multiplicity of each."""
        condition, body = self._programs(algebra)
        trip, matrix, state = self._trip(algebra), self.matrix(algebra), self._last(algebra)
        in_condition, in_body, last = Wanted(), Wanted(), Wanted()
        for (output, column), count in wanted.items():
            value = matrix[output, column]
            if state[output, column] == value:
                last[output, column] += count
            elif column in self._others and condition[column] == value:
                in_condition[0, column] += count
            else:
                middle = where(condition[self._state], state[:, column], value)
                in_condition[0, self._state[middle]] += count
                last[middle, column] += count
        in_a, in_b = self._repeated(algebra).entries(self._split(last), (Wanted(), Wanted()))
        for entries, columns in ((in_a, self._state), (in_b, self._others)):
            for (i, j), count in entries.items():
                column = columns[j]
                if body[i, column] == trip[i, column]:
                    in_body[i, column] += count
                else:
                    in_body[i, int(np.argmax(body[i]))] += count
                    in_condition[0, column] += count
        own = {column: i for i, column in enumerate(self._columns(self.condition_consts, 0))}
        of_body = {
            column: i
            for i, column in enumerate(self._columns(self.body_consts, self.condition_consts))
        }
        return [
            (
                self.condition,
                Wanted({(0, own[column]): n for (_, column), n in in_condition.items()}),
            ),
            (self.body, Wanted({(i, of_body[column]): n for (i, column), n in in_body.items()})),
        ]
