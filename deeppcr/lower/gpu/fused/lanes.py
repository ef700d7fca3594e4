"""A step divided among threads, side by side: each computes some entries of every array.

A lane is one of the threads that compute an example. Entries that are the same function of others
are one side: one statement, which each lane evaluates for its own. What all lanes need is read from
shared memory if it is an entry of the state, as in a product of the state with weights. If it is
the result of many instructions, one lane computes it, and shares it. A single lane runs the step as
it is.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import NEVER, CannotFuse, Code, Value

WORTH = 2 * limits.EXCHANGE_INSTRUCTIONS  # instructions of all lanes from which on they share

Entry = Value | None  # of one example; None: anything
Side = tuple[Entry, ...]  # the entries of the lanes; a single one if all have the same


def sides_of(
    results: Iterable[Side], count: int
) -> tuple[list[Side], dict[Side, Side], dict[Entry, Side]]:
    """What ``count`` lanes compute, of a step with these results.

    Returns:
        all sides that results are made of, each after what it is made of; for a side the one in
        which it is computed, as both leave room for each other; and for a value that lanes share
        the side in which one of them computes it.
    """
    needed: dict[Side, None] = {}
    merged: dict[Side, Side] = {}
    source: dict[Entry, Side] = {}
    waiting = defaultdict[int, dict[Side, None]](dict)

    def wait(sides: Iterable[Side]) -> None:
        for side in sides:
            waiting[max(x.level for x in present(side))][side] = None

    wait(results)
    while waiting:
        level = max(waiting)  # those first that are made of others
        of_all = defaultdict[int, dict[Value, None]](dict)
        of_each = defaultdict[int, list[Side]](list)
        while waiting[level]:
            side, _ = waiting[level].popitem()
            if len(kinds_of(side)) > 1:
                needed[side] = None
                wait(parts_of(side))
            elif len(side) == 1 < count and level:
                of_all[present(side)[0].structure][present(side)[0]] = None
            else:
                of_each[present(side)[0].structure].append(side)
        del waiting[level]
        sides = []
        for group in of_each.values():
            for whole, members in _merged(group).items():
                sides.append(whole)
                merged |= dict.fromkeys(members, whole)
        for same in of_all.values():
            if len(same) > 1 and sum(x.cost for x in same) >= WORTH:
                ordered = sorted(same, key=lambda x: x.number)
                for side in map(side_of, slots(ordered, count)):
                    source |= dict.fromkeys(side, side)
                    sides.append(side)
            else:
                sides += zip(same)
        needed |= dict.fromkeys(sides)
        wait(chain.from_iterable(map(parts_of, sides)))
    return sorted(needed, key=_number), merged, source


def slots(entries: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """Entries side by side, of ``count`` lanes; the last lanes may repeat the last entry."""
    groups = (tuple(entries[k : k + count]) for k in range(0, len(entries), count))
    return [group + group[-1:] * (count - len(group)) for group in groups]


def _merged(sides: list[Side]) -> dict[Side, list[Side]]:
    """Sides that are one kind of function, those in one that leave room for each other."""
    merged: dict[Side, list[Side]] = {}
    for side in sorted(sides, key=lambda side: side.count(None)):
        whole = side
        members = [side]
        for other in merged if None in side else ():
            pairs = list(zip(side, other, strict=False))
            if len(side) == len(other) and all(x == y or not (x and y) for x, y in pairs):
                whole = tuple(x or y for x, y in pairs)
                members += merged.pop(other)
                break
        merged.setdefault(whole, []).extend(members)
    return merged


def present(entries: Iterable[Any]) -> list[Any]:
    """Those of the entries that are not just anything."""
    return [x for x in entries if x is not None]


def side_of(entries: Sequence[Entry]) -> Side:
    """These entries, or the one that lanes have together."""
    members = present(entries)
    is_same = len({*members}) == 1 and (len(members) > 1 or members[0].constant is not None)
    return tuple(members[:1] if is_same or len(entries) == 1 else entries)


def kinds_of(side: Side) -> list[tuple[Any, ...]]:
    """The kinds of the entries of a side: see `Value`."""
    return list(dict.fromkeys(x.kind for x in present(side)))


def parts_of(side: Side) -> list[Side]:
    """What a side is made of: its operands, or sides of one kind each."""
    if len(kinds := kinds_of(side)) > 1:
        return list(map(partial(_of_kind, side), kinds))
    none = (None,) * len(present(side)[0].operands)
    operands = [x.operands if x else none for x in side]
    return list(map(side_of, zip(*operands, strict=True)))


def _of_kind(side: Side, kind: tuple[Any, ...]) -> Side:
    """The entries of one kind; any other is None."""
    return side_of([x if x and x.kind == kind else None for x in side])


def filled(entries: Sequence[Any]) -> list[Any]:
    """The entries, with that of the lane before in place of None."""
    last = present(entries)[0]
    return [last := last if x is None else x for x in entries]


def _number(side: Side) -> int:
    """A side is written after those of smaller numbers."""
    return max(x.number for x in present(side))


Expression = tuple[str, float]  # of C, and the operations that it waits for


class Lanes:
    """The statements of each lane. Each side is written once.

    Attributes:
        count: the number of lanes.
        lines: of a step, in C; ``r{j}_{k}`` is what a lane has of operand j, see ``reads``.
        reads: for each operand the indices of the entries that lanes read, side by side.
        shared: declarations of what they share.
        results: the entries of each result, side by side.
        instructions: of a lane.
        latency: operations that wait for each other, from state to state.
    """

    def __init__(self, code: Code, tables: Sequence[Any], states: int, name: str) -> None:
        """Write the lanes of a step.

        Args:
            code: its statements for one example.
            tables: of the results.
            states: the number of leaves of a state.
            name: of the memory that they share.

        Raises:
            CannotFuse: a lane has too many instructions.
        """
        self.count = count = code.threads
        values = np.array(code.values, object)
        results = [list(map(side_of, slots(values[k.ravel()].tolist(), count))) for k in tables]
        self.reads = defaultdict[int, list[tuple[int, ...]]](list)
        self.reads |= enumerate(slots(range(table.size), count) for table in tables[:states])
        self.shared: list[str] = []
        self.instructions = 0
        self._states = states
        self._name = name
        self._lines: list[str] = []
        self._declared: dict[tuple[str, str], str] = {}  # names by type and expression
        self._names: dict[Side | int, str] = {}  # in shared memory; a number is that of a state
        self._expressions: dict[Side, Expression] = {}
        self._sizes = Counter(x.place[0] for x in code.values if x.place)
        sides = chain.from_iterable(results)
        ordered, self._merged, self._source = sides_of(sides, count)
        for side in ordered:
            self._written(side)
        self.results = list(map(self._texts, results))
        self.latency = max(self._written(side)[1] for side in chain(*results))
        self.lines = self._sharing() + self._lines

    @property
    def begin(self) -> list[str]:
        """Declarations of what a lane has from the start, before the first step."""
        return [f"const {kind} {name} = {text};" for (kind, text), name in self._declared.items()]

    def index(self, indices: Sequence[int]) -> str:
        """An expression of C of the number that each lane has."""
        steps = np.diff(indices)
        if not steps.any():
            return str(indices[0])
        last = int(steps.nonzero()[0][-1]) + 1
        if np.unique(steps[:last]).size > 1:
            return self._declare("int", by_lane(list(map(str, indices))))
        text = f"lane < {last} ? lane : {last}"
        number = self._declare("int", text) if last < len(steps) else "lane"
        return f"{indices[0]} + {number} * {steps[0]}"

    def _declare(self, register: str, text: str) -> str:
        """The name of a variable of this type with the value of an expression."""
        return self._declared.setdefault((register, text), f"{self._name}_{len(self._declared)}")

    def _written(self, side: Side) -> Expression:
        """A side, after its statement."""
        side = self._merged.get(side, side)
        if side not in self._expressions:
            self._expressions[side] = self._write(side)
        return self._expressions[side]

    def _texts(self, sides: list[Side]) -> list[str]:
        return [self._written(side)[0] for side in sides]

    def _write(self, side: Side) -> Expression:
        first, kinds = present(side)[0], kinds_of(side)
        if len(kinds) == 1 and first.constant is not None:
            numbers = [x.text for x in filled(side)]
            text = self._declare(first.register, by_lane(numbers)) if side[1:] else first.text
            return text, NEVER
        if len(side) == 1 and self._source.get(first, side) != side:
            return self._receive(first)
        if len(kinds) == 1 and first.place:
            return self._read(first, side)
        texts, of_parts = zip(*map(self._written, parts_of(side)), strict=True)
        waits = max(of_parts)
        if len(kinds) > 1:
            choices = len(kinds) - 1
            text = by_lane(filled([x and texts[kinds.index(x.kind)] for x in side]))
            return self._line(first.register, text, choices, waits + choices)
        text = first.text.format(*texts)
        return self._line(first.register, text, first.instructions, waits + first.latency)

    def _line(self, register: str, text: str, instructions: int, waits: float) -> Expression:
        self.instructions += instructions
        if self.instructions > limits.MAX_INSTRUCTIONS:
            raise CannotFuse(f"a step has more than {limits.MAX_INSTRUCTIONS} instructions")
        name = f"t{len(self._lines)}"
        self._lines.append(f"const {register} {name} = {text};")
        return name, waits

    def _read(self, first: Value, side: Side) -> Expression:
        """Entries of an operand, of which one is the ``first``."""
        array, _ = first.place
        places = [x and x.place[1] for x in side]
        indices = self._continued(places, array) * (self.count // len(side))
        reads = self.reads[array]
        is_state = array < self._states
        if not is_state and indices not in reads:
            reads.append(indices)
        if indices in reads:
            return f"r{array}_{reads.index(indices)}", 0 if is_state else NEVER
        text = f"{self._share(array, first.register, len(reads))}[{self.index(indices)}]"
        return self._line(first.register, text, 1, limits.EXCHANGE_LATENCY)

    def _continued(self, indices: list[Any], array: int) -> tuple[int, ...]:
        """Indices of an operand, also for lanes that may have any: evenly spaced, if they can."""
        lanes = [lane for lane, index in enumerate(indices) if index is not None]
        first, last = lanes[0], lanes[-1]
        step = (indices[last] - indices[first]) // max(last - first, 1)
        even = [indices[first] + (lane - first) * step for lane in range(len(indices))]
        is_even = all(even[lane] == indices[lane] for lane in lanes)
        is_inside = min(even) >= 0 and max(even) < self._sizes[array]
        return tuple(even if is_even and is_inside else filled(indices))

    def _receive(self, value: Value) -> Expression:
        """A value of one lane."""
        side = self._source[value]
        text, waits = self._written(side)
        is_new = side not in self._names
        name = self._share(side, value.register, 1)
        if is_new:
            self._lines += [f"{name}[lane] = {text};", "MEET"]
        return self._line(
            value.register, f"{name}[{side.index(value)}]", 1, waits + limits.EXCHANGE_LATENCY
        )

    def _share(self, key: Side | int, register: str, slots: int) -> str:
        """The name of an array that lanes share."""
        if key not in self._names:
            self._names[key] = f"s{len(self._names)}"
            self.shared.append(f"{register} {self._names[key]}[{slots * self.count}];")
            self.instructions += limits.EXCHANGE_INSTRUCTIONS
        return f"{self._name}.{self._names[key]}"

    def _sharing(self) -> list[str]:
        """The statements before a step: nothing is overwritten that another lane still reads."""
        stores = []
        for key, name in self._names.items():
            for j in range(len(self.reads[key]) if isinstance(key, int) else 0):
                stores.append(f"{self._name}.{name}[{self.count * j} + lane] = r{key}_{j};")
        has_results = any(isinstance(key, tuple) for key in self._names)
        before = ["MEET"] * (bool(stores) != has_results)
        return [*before, *stores, *(["MEET"] if stores else [])]


def by_lane(texts: Sequence[str]) -> str:
    """An expression of C: for each lane its own."""
    *runs, last = ((text, len([*group])) for text, group in groupby(texts))
    ends = np.cumsum([count for _, count in runs]).tolist()
    cases = (f"lane < {end} ? {text} : " for (text, _), end in zip(runs, ends, strict=True))
    return "".join(cases) + last[0]
