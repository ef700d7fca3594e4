"""The launches of a compiled program: kernels, library calls and copies, and their loops.

XLA's text of a compiled program for a GPU is its list of launches: every instruction but those that
only name or regroup buffers is one, and the body of a loop is launched again in each trip. Before
each trip of a loop whose end depends on data, the host waits for the condition.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

NOTHING = frozenset(
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
    ]
)

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*)$")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_NAME = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True)
class Launches:
    """Launches of a part of a program.

    Attributes:
        here: launches outside of its loops.
        loops: the loops in it.
    """

    here: int
    loops: tuple["Loop", ...]

    def total(self, trips: Callable[[str], int]) -> "Total":
        """All launches; ``trips`` maps the name of a loop of unknown length to its trips."""
        launched, waits = self.here, 0
        for loop in self.loops:
            count = trips(loop.name) if loop.trips is None else loop.trips
            body, condition = loop.body.total(trips), loop.condition.total(trips)
            launched += count * (body.launches + condition.launches)
            waits += count * (body.waits + condition.waits)
            if loop.trips is None:
                launched, waits = launched + condition.launches, waits + 1 + count
        return Total(launched, waits)


@dataclass(frozen=True)
class Loop:
    """A loop.

    Attributes:
        name: the scopes in which jax has traced it: "jit(f)/newton/while".
        trips: number of trips; None if it depends on data.
        body: launches of a trip.
        condition: launches to evaluate its condition.
    """

    name: str
    trips: int | None
    body: Launches
    condition: Launches


class Total(NamedTuple):
    """Launches, and how often the host waits for the device in between."""

    launches: int
    waits: int


def launches(text: str) -> Launches:
    """Read the text of a compiled program, ``jax.jit(f).lower(...).compile().as_text()``.

    Raises:
        ValueError: it has no entry.
    """
    computations: dict[str, list[str]] = {}
    entry = name = None
    for line in text.splitlines():
        if begun := _COMPUTATION.match(line):
            name = begun[2]
            computations[name] = []
            entry = name if begun[1] else entry
        elif name is not None and (instruction := _INSTRUCTION.match(line)):
            computations[name].append(instruction[1])
    if entry is None:
        raise ValueError("the text is not that of a compiled program: it has no ENTRY.")
    return _of(computations, entry)


def _of(computations: dict[str, list[str]], name: str) -> Launches:
    here, loops = 0, []
    for instruction in computations[name]:
        match _opcode(instruction):
            case "while":
                trips, scopes = _TRIPS.search(instruction), _NAME.search(instruction)
                name, known = scopes[1] if scopes else "", int(trips[1]) if trips else None
                called = (_called(instruction, role) for role in ("body", "condition"))
                loops.append(Loop(name, known, *(_of(computations, one) for one in called)))
            case "call":
                inner = _of(computations, _called(instruction, "to_apply"))
                here, loops = here + inner.here, [*loops, *inner.loops]
            case "conditional":  # its longest branch
                branches = [_of(computations, branch) for branch in _branches(instruction)]
                longest = max(branches, key=lambda one: one.total(lambda _: 1).launches)
                here, loops = here + longest.here, [*loops, *longest.loops]
            case opcode if opcode not in NOTHING:
                here += 1
    return Launches(here, tuple(loops))


def _opcode(instruction: str) -> str:
    """The word before the operands, after the type of the result."""
    rest = instruction[_end_of_type(instruction) :]
    found = _OPCODE.match(rest)
    if not found:
        raise ValueError(f"expected an instruction, got {instruction[:80]!r}.")
    return found[1]


def _end_of_type(instruction: str) -> int:
    if not instruction.startswith("("):
        return instruction.index(" ")
    depth = 0
    for index, character in enumerate(instruction):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return index + 1
    return len(instruction)


def _called(instruction: str, role: str) -> str:
    found = re.search(rf"{role}=%?([\w.\-]+)", instruction)
    assert found is not None
    return found[1]


def _branches(instruction: str) -> Iterator[str]:
    if found := re.search(r"branch_computations=\{([^}]*)\}", instruction):
        yield from (name.strip().lstrip("%") for name in found[1].split(","))
    else:
        yield from (_called(instruction, f"{answer}_computation") for answer in ("true", "false"))
