"""A step divided among threads, side by side: each computes some entries of every array.

Entries that are the same function of others are one statement, which each lane, as such a thread is
called, evaluates for its own. What all lanes need is read from shared memory if it is an entry of
the state, as in a product of the state with weights. If it is the result of many instructions, one
lane computes it, and shares it. A single lane runs the step as it is.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from deeppcr.lower.gpu.fused.operations import NEVER, CannotFuse, Code, Value, in_c

# Cost of an exchange between lanes, in operations: latency, instructions.
SHARING = 8, 32
WORTH = 2 * SHARING[1]  # instructions of all lanes from which on they share

Entry = Value | str | None  # of one example: a variable, or a number in C; None: anything
Side = tuple[Entry, ...]  # the entries of the lanes; a single one if all have the same
Known = tuple[str, float]  # an expression of C, and the operations that it waits for


class Lanes:
    """The statements of each lane.

    Attributes:
        count: the number of lanes.
        lines: of a step, in C; ``r{j}_{k}`` is what a lane has of operand j, see ``reads``.
        begin: declarations before the first step.
        reads: for each operand the indices of the entries that lanes read, side by side.
        shared: declarations of what they share.
        results: the entries of each result, side by side.
        instructions: of a lane.
        latency: operations that wait for each other, from state to state.
    """

    def __init__(
        self,
        code: Code,
        tables: Sequence[Any],
        states: int,
        count: int,
        most: int,
        name: str,
    ) -> None:
        """The lanes of a step.

        Args:
            code: its statements for one example, which read entry k of operand j as ``"{j} {k}"``.
            tables: of the results.
            states: the number of leaves of a state.
            count: the number of lanes.
            most: instructions of a lane.
            name: of the memory that they share.

        Raises:
            CannotFuse: there are more.
        """
        self.count, self.instructions, self._most, self._name = count, 0, most, name
        self._values, self._states = code.values, states
        self.begin: list[str] = []
        self.lines: list[str] = []
        self._declared: dict[str, str] = {}
        self.shared: list[str] = []
        self._names: dict[Side | int, str] = {}  # in shared memory; a number is that of a state
        self._source: dict[Any, Side] = {}  # what lanes share a value with
        self._known: dict[Side, Known] = {}
        self._alias: dict[Side, Side] = {}  # sides that are computed in another one
        self._sizes: dict[int, int] = {}  # of what is read of each operand
        for x in code.values:
            if not x.operands:
                array, entry = _place(x)
                self._sizes[array] = max(self._sizes.get(array, 0), entry + 1)
        self.reads = defaultdict[int, list[tuple[int, ...]]](list)
        for k, table in enumerate(tables[:states]):
            self.reads[k] = self.slots(range(table.size))
        results = [list(map(_side, self.slots([*map(in_c, table.flat)]))) for table in tables]
        needed = self._needed(side for sides in results for side in sides)
        for side in sorted(needed, key=_number):
            self._spelled(side)
        found = [list(map(self._spelled, sides)) for sides in results]
        self.results = [[text for text, _ in sides] for sides in found]
        self.latency = max(waits for sides in found for _, waits in sides)
        self.lines[:0] = self._sharing()

    def slots(self, entries: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The entries of an array, side by side; the last lanes may repeat the last entry."""
        groups = (tuple(entries[k : k + self.count]) for k in range(0, len(entries), self.count))
        return [each + each[-1:] * (self.count - len(each)) for each in groups]

    def index(self, indices: Sequence[int]) -> str:
        """An expression of C of the number that each lane has."""
        steps = np.diff(indices)
        if not steps.any():
            return str(indices[0])
        last = int(steps.nonzero()[0][-1]) + 1
        if np.unique(steps[:last]).size > 1:
            return self._declare("int", chosen(list(map(str, indices))))
        own = "lane"
        if last < len(steps):
            own = self._declare("int", f"lane < {last} ? lane : {last}")
        return f"{indices[0]} + {own} * {steps[0]}"

    def _declare(self, register: str, text: str) -> str:
        """A variable that a lane has from the start."""
        if text not in self._declared:
            self._declared[text] = f"{self._name}_{len(self._declared)}"
            self.begin.append(f"const {register} {self._declared[text]} = {text};")
        return self._declared[text]

    def _needed(self, results: Iterable[Side]) -> Iterable[Side]:
        """All that results are made of; what lanes share of it is decided meanwhile."""
        levels, kinds, costs = _described(self._values)
        needed: dict[Side, None] = {}
        waiting = defaultdict[int, dict[Side, None]](dict)

        def wait(sides: Iterable[Side]) -> None:
            for side in sides:
                waiting[max(levels.get(x, 0) for x in side)][side] = None

        wait(results)
        while waiting:
            level = max(waiting)  # those first that are made of others
            of_all = defaultdict[int, dict[Any, None]](dict)
            of_each = defaultdict[Any, list[Side]](list)
            while waiting[level]:
                side, _ = waiting[level].popitem()
                if len(_kinds(side)) > 1:
                    needed[side] = None
                    wait(_parts(side))
                elif len(side) == 1 < self.count and level:
                    of_all[kinds[side[0]]][side[0]] = None
                else:
                    of_each[next(kinds.get(x, x) for x in side if x)].append(side)
            del waiting[level]
            sides = [side for own in of_each.values() for side in self._merged(own)]
            for values in of_all.values():
                if len(values) > 1 and sum(costs[x] for x in values) >= WORTH:
                    ordered = sorted(values, key=lambda x: x.number)
                    shared = [_side(each) for each in self.slots(ordered)]
                    self._source |= {x: side for side in shared for x in side}
                    sides += shared
                else:
                    sides += [(x,) for x in values]
            needed |= dict.fromkeys(sides)
            wait(part for side in sides for part in _parts(side))
        return needed

    def _merged(self, sides: list[Side]) -> Iterable[Side]:
        """Sides that are one kind of function, those in one that leave room for each other."""
        merged: dict[Side, list[Side]] = {}
        for side in sorted(sides, key=lambda side: side.count(None)):
            found, own = side, [side]
            for other in merged if None in side else ():
                pairs = list(zip(side, other, strict=False))
                if len(side) == len(other) and all(x == y or not (x and y) for x, y in pairs):
                    found = tuple(x or y for x, y in pairs)
                    own += merged.pop(other)
                    break
            merged.setdefault(found, []).extend(own)
        self._alias |= {side: found for found, own in merged.items() for side in own}
        return merged

    def _spelled(self, side: Side) -> Known:
        side = self._alias.get(side, side)
        if side not in self._known:
            self._known[side] = self._written(side)
        return self._known[side]

    def _written(self, side: Side) -> Known:
        if not (values := [x for x in side if isinstance(x, Value)]):
            numbers = _filled(side)
            text = numbers[0]
            return self._declare(_type(numbers), chosen(numbers)) if side[1:] else text, NEVER
        first, kinds = values[0], _kinds(side)
        if len(side) == 1 and self._source.get(first, side) != side:
            return self._receive(first)
        parts = list(map(self._spelled, _parts(side)))
        texts, waits = [text for text, _ in parts], max((x for _, x in parts), default=NEVER)
        if len(kinds) > 1:
            text = chosen(_filled([x and texts[kinds.index(_kind(x))] for x in side]))
            cost = len(kinds) - 1, len(kinds) - 1
        elif not first.operands:
            return self._read(side)
        else:
            text, cost = first.text.format(*texts), first.cost
        return self._line(first.register, text, cost[1], waits + cost[0])

    def _line(self, register: str, text: str, instructions: int, waits: float) -> Known:
        self.instructions += instructions
        if self.instructions > self._most:
            raise CannotFuse(f"a step has more than {self._most} instructions")
        name = f"t{len(self.lines)}"
        self.lines.append(f"const {register} {name} = {text};")
        return name, waits

    def _read(self, side: Side) -> Known:
        """Entries of an operand."""
        first = next(x for x in side if isinstance(x, Value))
        array, _ = _place(first)
        own = [_place(x)[1] if isinstance(x, Value) else None for x in side]
        indices = self._continued(own, array)
        indices *= self.count // len(side)
        reads = self.reads[array]
        if array >= self._states and indices not in reads:
            reads.append(indices)
        if indices in reads:
            return f"r{array}_{reads.index(indices)}", NEVER if array >= self._states else 0
        text = f"{self._share(array, first.register, len(reads))}[{self.index(indices)}]"
        return self._line(first.register, text, 1, SHARING[0])

    def _continued(self, indices: list[Any], array: int) -> tuple[int, ...]:
        """Indices of an operand, also for lanes that may have any: evenly spaced, if they can."""
        known = [(lane, index) for lane, index in enumerate(indices) if index is not None]
        (lane, start), (other, end) = known[0], known[-1]
        step = (end - start) // max(other - lane, 1)
        found = [start + (k - lane) * step for k in range(len(indices))]
        is_even = all(found[lane] == index for lane, index in known)
        if not is_even or min(found) < 0 or max(found) >= self._sizes[array]:
            found = _filled(indices)
        return tuple(found)

    def _receive(self, value: Value) -> Known:
        """A value of one lane."""
        side = self._source[value]
        text, waits = self._spelled(side)
        is_new = side not in self._names
        name = self._share(side, value.register, 1)
        if is_new:
            self.lines += [f"{name}[lane] = {text};", "MEET"]
        return self._line(value.register, f"{name}[{side.index(value)}]", 1, waits + SHARING[0])

    def _share(self, key: Side | int, register: str, slots: int) -> str:
        """The name of an array that lanes share."""
        if key not in self._names:
            self._names[key] = f"s{len(self._names)}"
            self.shared.append(f"{register} {self._names[key]}[{slots * self.count}];")
            self.instructions += SHARING[1]
        return f"{self._name}.{self._names[key]}"

    def _sharing(self) -> list[str]:
        """The statements before a step: nothing is overwritten that another lane still reads."""
        stores = [
            f"{self._name}.{name}[{self.count * j} + lane] = r{k}_{j};"
            for k, name in self._names.items()
            if isinstance(k, int)
            for j in range(len(self.reads[k]))
        ]
        others = any(isinstance(key, tuple) for key in self._names)
        before = ["MEET"] * (bool(stores) != others)
        return [*before, *stores, *(["MEET"] if stores else [])]


def chosen(texts: Sequence[str]) -> str:
    """An expression of C: for each lane its own."""
    *runs, last = ((text, len([*group])) for text, group in groupby(texts))
    ends = np.cumsum([count for _, count in runs]).tolist()
    cases = (f"lane < {end} ? {text} : " for (text, _), end in zip(runs, ends, strict=True))
    return "".join(cases) + last[0]


NUMBER = ("number",)


def _kind(entry: Value | str) -> tuple[Any, ...]:
    """What entries have in common that one statement computes."""
    if isinstance(entry, str):
        return NUMBER
    if not entry.operands:
        return "operand", _place(entry)[0]
    return entry.register, entry.text, len(entry.operands)


def _place(value: Value) -> tuple[int, int]:
    """Which entry of which operand is read."""
    operand, entry = map(int, value.text.split())
    return operand, entry


def _side(entries: Sequence[Entry]) -> Side:
    """These entries, or the one that lanes have together."""
    known = [x for x in entries if x is not None]
    is_same = len({*known}) == 1 and (len(known) > 1 or isinstance(known[0], str))
    return tuple(known[:1] if is_same or len(entries) == 1 else entries)


def _kinds(side: Side) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(_kind(x) for x in side if x is not None))


def _parts(side: Side) -> list[Side]:
    """What a side is made of: its operands, or sides of one kind each."""
    if len(kinds := _kinds(side)) > 1:
        return [_side([x if x and _kind(x) == kind else None for x in side]) for kind in kinds]
    known = next(x for x in side if x is not None)
    count = 0 if isinstance(known, str) else len(known.operands)
    operands = [x.operands if isinstance(x, Value) else (None,) * count for x in side]
    return [_side(each) for each in zip(*operands, strict=True)]


def _filled(entries: Sequence[Any]) -> list[Any]:
    """The entries, with that of the lane before in place of None."""
    last = next(x for x in entries if x is not None)
    return [last := last if x is None else x for x in entries]


def _number(side: Side) -> int:
    """A side is written after those of smaller numbers."""
    return max((x.number for x in side if isinstance(x, Value)), default=-1)


def _described(values: Iterable[Value]) -> tuple[dict[Any, int], dict[Any, int], dict[Any, int]]:
    """Of each value how many operations it is away from operands, its structure, and its cost."""
    levels: dict[Any, int] = {}
    kinds: dict[Any, int] = {}
    costs: dict[Any, int] = {}
    numbers: dict[Any, int] = {}
    for x in values:
        inner = [y for y in x.operands if isinstance(y, Value)]
        levels[x] = max((1 + levels[y] for y in inner), default=0) if x.operands else 0
        structure = _kind(x), *(kinds.get(y, -1) for y in x.operands)
        kinds[x] = numbers.setdefault(structure, len(numbers))
        costs[x] = x.cost[1] + sum(costs[y] for y in inner)
    return levels, kinds, costs


def _type(numbers: Sequence[str]) -> str:
    """The type in C that holds numbers, as `spelled` writes them."""
    is_float = [text.endswith(("f)", "INFINITE)", "NOT_A_NUMBER")) for text in numbers]
    is_integer = [re.fullmatch(r"\([\d -]+(ull)?\)", text) for text in numbers]
    if not any(is_integer):
        return "float" if all(is_float) else "double"
    return "unsigned long long" if any(text.endswith("ull)") for text in numbers) else "long long"
