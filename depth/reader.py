"""Reading a program: the graphs of its jaxprs, each built once, and what is unknown of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depth.graph import Block
from depth.jaxprs import NOWHERE, Location, inside, without_constants
from depth.loops import Expected, WhileLoop
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


class Reader:
    """Reads the jaxprs of one program, with caches for that program only."""

    def __init__(self, trip_counts: TripCounts = None):
        self.trip_counts = trip_counts
        self.unknown: dict[Unknown, None] = {}
        self.expected: dict[Expected, None] = {}
        self.loops: dict[WhileLoop, None] = {}  # while loops without a proven trip count
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
        self, equation: Any, operands: list[int | None], loop: WhileLoop
    ) -> tuple[int | None, bool]:
        """The number of trips of a while loop, and whether it is proven.

        A number given for this loop comes before an expected one, and that before one given for all
        loops.
        """
        proven, given = trip_count(equation, operands), self.trip_counts
        if proven is not None:
            return proven, True
        self.loops[loop] = None
        for key, trips in given.items() if isinstance(given, Mapping) else ():
            if loop.has(key):
                return max(0, trips - loop.before * loop.is_named(key)), False
        if loop.expected is None:
            return None if isinstance(given, Mapping) else given, False
        self.expected[loop.expected] = None
        return max(0, loop.expected.trips - loop.before), False

    def _has_loop(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._loops_inside:
            self._loops_inside[id(jaxpr)] = any(
                equation.primitive.name == "while"
                or any(self._has_loop(inner) for inner in inside(equation))
                for equation in jaxpr.eqns
            )
        return self._loops_inside[id(jaxpr)]
