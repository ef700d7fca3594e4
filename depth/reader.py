"""Reading a program: the graphs of its jaxprs, each built once, and what is unknown of it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from depth.graph import Block
from depth.jaxprs import NOWHERE, Location, inside, without_constants
from depth.loops import Expected, LoopName, name_of
from depth.structures import Reading
from depth.trips import trip_count


@dataclass(frozen=True)
class Unknown:
    """A part of a program that makes its depth a lower bound: an entry of ``Cost.unknown``.

    Attributes:
        primitive: The name of the primitive.
        location: The source line.
        reason: What is unknown.

    Example:
        >>> import depth, jax
        >>> halve = lambda x: jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
        >>> cost = depth.analyze(halve, jax.ShapeDtypeStruct((), "float32"))
        >>> cost.exact, cost.unknown[0].primitive
        (False, 'while')
    """

    primitive: str
    location: Location
    reason: str

    def __str__(self) -> str:
        return f"{self.primitive} at {self.location}: {self.reason}"


TripCounts = int | Mapping[str, int] | None


class Loop(NamedTuple):
    """A while loop whose number of trips is not proven."""

    location: Location
    name: LoopName

    def has_line(self, key: str) -> bool:
        """Whether ``key``, as ``file.py:12``, is its source line."""
        file, _, line = key.rpartition(":")
        where = self.location
        return str(where.line) == line and f"/{where.file}".endswith(f"/{file}")

    def has(self, key: str) -> bool:
        """Whether ``key`` is its name or its source line."""
        return self.name.matches(key) or self.has_line(key)

    @property
    def key(self) -> str:
        """Its key in ``trip_counts``: its name, or its source line."""
        return self.name.name or f"{os.path.basename(self.location.file)}:{self.location.line}"

    def __str__(self) -> str:
        line = f"{os.path.basename(self.location.file)}:{self.location.line}"
        return f"{self.name.name!r} ({line})" if self.name.path else line


class Reader:
    """Reads the jaxprs of one program, with caches for that program only."""

    def __init__(self, trip_counts: TripCounts = None):
        self.trip_counts = trip_counts
        self.unknown: dict[Unknown, None] = {}
        self.expected: dict[Expected, None] = {}
        self.loops: dict[Loop, None] = {}  # while loops without a proven trip count
        self._blocks: dict[Any, Block] = {}
        self._loops_inside: dict[int, bool] = {}

    def block(
        self,
        jaxpr: Any,
        caller: Location = NOWHERE,
        axes: Mapping[str, int] | None = None,
        known: Sequence[int | None] | None = None,
    ) -> Block:
        """The graph of ``jaxpr``.

        ``caller`` is the line of equations without their own, ``axes`` are the sizes of named axes,
        and ``known`` the values of inputs that are known integers.
        """
        jaxpr = without_constants(jaxpr)
        values = tuple(known) if known and self._has_loop(jaxpr) else (None,) * len(jaxpr.invars)
        key = id(jaxpr), tuple(sorted((axes or {}).items())), values
        if key not in self._blocks:  # a block keeps its jaxpr, and so the id
            self._blocks[key] = Reading(self, jaxpr, caller, dict(axes or {}), values).block()
        return self._blocks[key]

    def note(self, primitive: str, where: Location, reason: str) -> None:
        """Record an unknown part."""
        self.unknown[Unknown(primitive, where, reason)] = None

    def count_trips(
        self, equation: Any, operands: list[int | None], where: Location
    ) -> tuple[int | None, bool, str]:
        """The number of trips of a while loop, whether it is proven, and its key.

        A number given for this loop comes before an expected one, and that before one given for all
        loops.
        """
        loop = Loop(where, name_of(equation))
        name, given = loop.name, self.trip_counts
        proven = trip_count(equation, operands)
        if proven is not None:
            return proven, True, loop.key
        self.loops[loop] = None
        for key, trips in given.items() if isinstance(given, Mapping) else ():
            if loop.has(key):
                return max(0, trips - name.before * name.matches(key)), False, loop.key
        if name.expected is None:
            return None if isinstance(given, Mapping) else given, False, loop.key
        self.expected[name.expected] = None
        return max(0, name.expected.trips - name.before), False, loop.key

    def _has_loop(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._loops_inside:
            self._loops_inside[id(jaxpr)] = any(
                equation.primitive.name == "while"
                or any(self._has_loop(inner) for inner in inside(equation))
                for equation in jaxpr.eqns
            )
        return self._loops_inside[id(jaxpr)]
