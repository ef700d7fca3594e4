"""A step divided among threads, side by side: each computes some entries of every array.

Entries that are the same function of others are one statement, which each lane, as such a thread is
called, evaluates for its own. What all lanes need is read from shared memory if it is an entry of
the state, as in a product of the state with weights. If it is the result of many instructions, one
lane computes it, and shares it. A single lane runs the step as it is.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import NEVER, CannotFuse, Code, Value, in_c
from deeppcr.lower.gpu.fused.sides import (
    Side,
    filled,
    kind_of,
    kinds_of,
    parts_of,
    side_of,
    sides_of,
    slots,
)

Known = tuple[str, float]  # an expression of C, and the operations that it waits for


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

    def __init__(
        self, code: Code, tables: Sequence[Any], states: int, count: int, name: str
    ) -> None:
        """Write the lanes of a step.

        Args:
            code: its statements for one example.
            tables: of the results.
            states: the number of leaves of a state.
            count: the number of lanes.
            name: of the memory that they share.

        Raises:
            CannotFuse: a lane has too many instructions.
        """
        results = [list(map(side_of, slots([*map(in_c, table.flat)], count))) for table in tables]
        self.count = count
        self.reads = defaultdict[int, list[tuple[int, ...]]](list)
        self.reads |= enumerate(slots(range(table.size), count) for table in tables[:states])
        self.shared: list[str] = []
        self.instructions = 0
        self._states = states
        self._name = name
        self._lines: list[str] = []
        self._declared: dict[tuple[str, str], str] = {}  # names by type and expression
        self._names: dict[Side | int, str] = {}  # in shared memory; a number is that of a state
        self._known: dict[Side, Known] = {}
        self._sizes = Counter(x.place[0] for x in code.values if x.place)
        every = (side for own in results for side in own)
        ordered, self._merged, self._source = sides_of(every, code.values, count)
        for side in ordered:
            self._written(side)
        known = [list(map(self._written, own)) for own in results]
        self.results = [[text for text, _ in own] for own in known]
        self.latency = max(waits for own in known for _, waits in own)
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
            return self._declare("int", chosen(list(map(str, indices))))
        own = "lane"
        if last < len(steps):
            own = self._declare("int", f"lane < {last} ? lane : {last}")
        return f"{indices[0]} + {own} * {steps[0]}"

    def _declare(self, register: str, text: str) -> str:
        """The name of a variable of this type with the value of an expression."""
        return self._declared.setdefault((register, text), f"{self._name}_{len(self._declared)}")

    def _written(self, side: Side) -> Known:
        """A side, after its statement."""
        side = self._merged.get(side, side)
        if side not in self._known:
            self._known[side] = self._write(side)
        return self._known[side]

    def _write(self, side: Side) -> Known:
        values = [x for x in side if isinstance(x, Value)]
        if not values:
            numbers = filled(side)
            known = self._declare(_type(numbers), chosen(numbers)) if side[1:] else numbers[0]
            return known, NEVER
        first, kinds = values[0], kinds_of(side)
        if len(side) == 1 and self._source.get(first, side) != side:
            return self._receive(first)
        if len(kinds) == 1 and first.place:
            return self._read(first, side)
        parts = list(map(self._written, parts_of(side)))
        texts = [text for text, _ in parts]
        waits = max(before for _, before in parts)
        if len(kinds) > 1:
            choices = len(kinds) - 1
            text = chosen(filled([x and texts[kinds.index(kind_of(x))] for x in side]))
            return self._line(first.register, text, choices, waits + choices)
        text = first.text.format(*texts)
        return self._line(first.register, text, first.instructions, waits + first.latency)

    def _line(self, register: str, text: str, instructions: int, waits: float) -> Known:
        self.instructions += instructions
        if self.instructions > limits.MAX_INSTRUCTIONS:
            raise CannotFuse(f"a step has more than {limits.MAX_INSTRUCTIONS} instructions")
        name = f"t{len(self._lines)}"
        self._lines.append(f"const {register} {name} = {text};")
        return name, waits

    def _read(self, first: Value, side: Side) -> Known:
        """Entries of an operand, of which one is the ``first``."""
        array, _ = first.place
        own = [x.place[1] if isinstance(x, Value) else None for x in side]
        indices = self._continued(own, array)
        indices *= self.count // len(side)
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
        known = [(lane, index) for lane, index in enumerate(indices) if index is not None]
        (lane, start), (other, end) = known[0], known[-1]
        step = (end - start) // max(other - lane, 1)
        found = [start + (k - lane) * step for k in range(len(indices))]
        is_even = all(found[lane] == index for lane, index in known)
        if not is_even or min(found) < 0 or max(found) >= self._sizes[array]:
            found = filled(indices)
        return tuple(found)

    def _receive(self, value: Value) -> Known:
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


def _type(numbers: Sequence[str]) -> str:
    """The type in C that holds numbers, as `spelled` writes them."""
    is_float = [text.endswith(("f)", "INFINITE)", "NOT_A_NUMBER")) for text in numbers]
    is_integer = [re.fullmatch(r"\([\d -]+(ull)?\)", text) for text in numbers]
    if not any(is_integer):
        return "float" if all(is_float) else "double"
    return "unsigned long long" if any(text.endswith("ull)") for text in numbers) else "long long"
