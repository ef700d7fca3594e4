"""From a jaxpr to its graph.

Every equation becomes a node, and every inner program a graph of its own, built once.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from depth.counts import Unbound, ceil_log2, devices, traffic
from depth.graph import START, Block, Node, Totals, Transfer
from depth.jaxprs import (
    NOWHERE,
    Location,
    inside,
    is_literal,
    is_reference,
    live_equations,
    location,
    without_constants,
)
from depth.known import Known
from depth.loops import Expected, LoopName, name_of
from depth.primitives import Primitive, primitive
from depth.structures import ENTERED
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
            self._blocks[key] = _Read(self, jaxpr, caller, dict(axes or {}), values).block()
        return self._blocks[key]

    def count_trips(
        self, equation: Any, operands: list[int | None], loop: Loop
    ) -> tuple[int | None, bool]:
        """The number of trips of a while loop, and whether it is proven.

        A number given for this loop comes before an expected one, and that before one given for all
        loops.
        """
        proven = trip_count(equation, operands)
        if proven is not None:
            return proven, True
        self.loops[loop] = None
        name, given = loop.name, self.trip_counts
        for key, trips in given.items() if isinstance(given, Mapping) else ():
            if name.matches(key):
                return max(0, trips - name.before), False
            if loop.has_line(key):
                return trips, False
        if name.expected is None:
            return None if isinstance(given, Mapping) else given, False
        self.expected[name.expected] = None
        return max(0, name.expected.trips - name.before), False

    def _has_loop(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._loops_inside:
            self._loops_inside[id(jaxpr)] = any(
                equation.primitive.name == "while"
                or any(self._has_loop(inner) for inner in inside(equation))
                for equation in jaxpr.eqns
            )
        return self._loops_inside[id(jaxpr)]


class _Read:
    """One jaxpr being read.

    Its variables are numbered, and its equations turned into nodes one by one.
    """

    def __init__(
        self,
        reader: Reader,
        jaxpr: Any,
        caller: Location,
        axes: dict[str, int],
        known: tuple[int | None, ...],
    ):
        self.reader, self.jaxpr, self.caller, self.axes = reader, jaxpr, caller, axes
        self.slot: dict[Any, int] = dict.fromkeys(jaxpr.constvars, START)
        self.slot |= {variable: 1 + i for i, variable in enumerate(jaxpr.invars)}
        given = zip(jaxpr.invars, known, strict=True)
        self.known = Known(jaxpr, {atom: value for atom, value in given if value is not None})
        self.slots = 1 + len(jaxpr.invars)
        self.nodes: list[Node] = []
        self.work = self.bytes = 0

    def block(self) -> Block:
        """The graph."""
        for equation in live_equations(self.jaxpr):
            self.read(equation)
        inputs = enumerate(self.jaxpr.invars)
        references = {i: self.slot[variable] for i, variable in inputs if is_reference(variable)}
        outputs = [self.at(atom) for atom in self.jaxpr.outvars]
        return Block(
            self.jaxpr,
            self.caller,
            len(self.jaxpr.invars),
            self.nodes,
            outputs,
            references,
            self.slots,
            Totals(self.work, self.bytes),
        )

    def at(self, atom: Any) -> int:
        """The slot of an operand."""
        return START if is_literal(atom) else self.slot[atom]

    def inner(
        self,
        equation: Any,
        jaxpr: Any,
        known: Sequence[int | None] | None = None,
        axes: Mapping[str, int] | None = None,
    ) -> Block:
        """The graph of an inner program of ``equation``."""
        return self.reader.block(
            jaxpr, location(equation, self.caller), {**self.axes, **(axes or {})}, known
        )

    def note(self, equation: Any, reason: str) -> None:
        """Record that a property of ``equation`` is unknown."""
        self.reader.unknown[
            Unknown(equation.primitive.name, location(equation, self.caller), reason)
        ] = None

    def lose(self, atoms: Sequence[Any]) -> None:
        """Treat references among ``atoms`` that could not be followed as known from START."""
        self.slot.update({atom: START for atom in atoms if is_reference(atom)})

    def node(
        self,
        equation: Any,
        operands: Sequence[Any],
        results: Sequence[Any],
        depth: int = 0,
        transfer: Transfer | None = None,
    ) -> None:
        """Add a node from the variables ``operands`` to the variables ``results``.

        A reference gets a new slot.
        """
        read = tuple(self.at(atom) for atom in operands)
        made = tuple(range(self.slots, self.slots + len(results)))
        self.slots += len(results)
        self.slot.update(zip(results, made, strict=True))
        self.nodes.append(
            Node(equation, read if transfer else read or (START,), made, depth, transfer)
        )

    def leaf(self, equation: Any, depth: int, work: int) -> None:
        """Add an equation whose results are ``depth`` later than its latest operand."""
        self.node(equation, equation.invars, equation.outvars, depth)
        self.count(equation, work)

    def count(self, equation: Any, work: int) -> None:
        """Count the work and the traffic of an equation."""
        self.work += work
        self.bytes += traffic(equation)

    def read(self, equation: Any) -> None:
        """Add the equation, by its class."""
        known = primitive(equation)
        enter = ENTERED.get(equation.primitive.name) or ENTERED.get(known.kind)
        if enter:
            enter(self, equation)
        else:
            self.ruled(equation, known)

    def ruled(self, equation: Any, rule: Primitive) -> None:
        """Add an equation whose depth follows from its shapes."""
        depth = rule.depth(equation)
        if rule.kind == "collective":
            try:
                depth += ceil_log2(devices(equation, self.axes))
            except Unbound as unbound:
                self.note(equation, str(unbound))
        self.leaf(equation, depth, rule.work(equation))
        if rule.bound:
            self.note(equation, rule.bound)
            self.lose(equation.invars)

    def integers(self, equation: Any) -> list[int | None]:
        """The operands whose value is known."""
        return [self.known.number(atom) for atom in equation.invars]

    def count_trips(self, equation: Any, operands: list[int | None]) -> tuple[int | None, bool]:
        """The number of trips of a while loop, and whether it is proven."""
        return self.reader.count_trips(equation, operands, self.loop(equation))

    def loop(self, equation: Any) -> Loop:
        """The while loop that an equation is."""
        return Loop(location(equation, self.caller), name_of(equation))

    def enter(self, equation: Any, transfer: Any, results: Sequence[Any] | None = None) -> None:
        """Add a node with inner programs; ``results`` if it also changes references."""
        self.node(
            equation, equation.invars, equation.outvars if results is None else results, 0, transfer
        )
        self.work += transfer.totals.work
        self.bytes += transfer.totals.bytes
