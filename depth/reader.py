"""Reading a program: each of its jaxprs becomes a graph once, and every equation a node.

An equation whose depth follows from its shapes has it from the table of primitives, others have a
function in `depth.inner`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depth import counts
from depth.counts import ceil_log2, elements, traffic
from depth.graph import START, Block, CalledProgram, Node, Totals, Transfer
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
from depth.loops import Expected, WhileLoop
from depth.primitives import primitive
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
    """Reads the jaxprs of one program, with caches for that program only.

    ``entered``: functions for equations with inner programs, by name or kind of the primitive.
    """

    def __init__(self, entered: "Mapping[str, Enter]", trip_counts: TripCounts = None):
        self.entered, self.trip_counts = entered, trip_counts
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

    def count_trips(
        self, equation: Any, operands: list[int | None], loop: WhileLoop
    ) -> tuple[int | None, bool]:
        """The number of trips of a while loop, and whether it is proven.

        A number given for this loop comes before an expected one, and that before one given for all
        loops.
        """
        proven = trip_count(equation, operands)
        given = self.trip_counts
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
            is_here = any(each.primitive.name == "while" for each in jaxpr.eqns)
            found = is_here or any(map(self._has_loop, inside(*jaxpr.eqns)))
            self._loops_inside[id(jaxpr)] = found
        return self._loops_inside[id(jaxpr)]


class Reading:
    """One jaxpr being read.

    Its variables are numbered, and its equations turned into nodes one by one.

    Args:
        reader: that of the whole program.
        jaxpr: the jaxpr.
        caller: the line of equations without their own.
        axes: the sizes of named axes.
        known: the values of inputs that are known integers.
    """

    def __init__(
        self,
        reader: Reader,
        jaxpr: Any,
        caller: Location,
        axes: dict[str, int],
        known: Sequence[int | None],
    ):
        self.reader = reader
        self.jaxpr = jaxpr
        self.caller = caller
        self.axes = axes
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
            kind = primitive(equation).kind
            entered = self.reader.entered
            enter = entered.get(equation.primitive.name) or entered.get(kind) or _ruled
            enter(self, equation)
        inputs = enumerate(self.jaxpr.invars)
        return Block(
            self.jaxpr,
            self.caller,
            len(self.jaxpr.invars),
            self.nodes,
            [START if is_literal(atom) else self.slot[atom] for atom in self.jaxpr.outvars],
            {i: self.slot[variable] for i, variable in inputs if is_reference(variable)},
            self.slots,
            Totals(self.work, self.bytes),
        )

    def inner(
        self,
        equation: Any,
        jaxpr: Any,
        known: Sequence[int | None] | None = None,
        axes: Mapping[str, int] | None = None,
    ) -> Block:
        """The graph of an inner program of ``equation``."""
        where = location(equation, self.caller)
        return self.reader.block(jaxpr, where, {**self.axes, **(axes or {})}, known)

    def integers(self, equation: Any) -> list[int | None]:
        """The operands whose value is known."""
        return [self.known.number(atom) for atom in equation.invars]

    def note(self, equation: Any, reason: str) -> None:
        """Record that a property of ``equation`` is unknown."""
        where = location(equation, self.caller)
        self.reader.unknown[Unknown(equation.primitive.name, where, reason)] = None

    def lose(self, atoms: Sequence[Any]) -> None:
        """Treat references among ``atoms`` that could not be followed as known from START."""
        self.slot.update({atom: START for atom in atoms if is_reference(atom)})

    def lose_written(self, equation: Any, block: Block, first: int) -> None:
        """Record if a branch or a loop writes to references among its operands from ``first`` on.

        Only calls return the final contents of references. Their earlier contents may be later than
        that, so they are not a bound.
        """
        written = [
            equation.invars[first + i] for i, end in block.references.items() if end != 1 + i
        ]
        if written:
            reason = "it writes to a mutable reference, and later reads of it are not made to wait"
            self.note(equation, reason)
            self.lose(written)

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
        read = tuple(START if is_literal(atom) else self.slot[atom] for atom in operands)
        made = tuple(range(self.slots, self.slots + len(results)))
        self.slots += len(results)
        self.slot.update(zip(results, made, strict=True))
        self.nodes.append(
            Node(equation, read if transfer else read or (START,), made, depth, transfer)
        )

    def count(self, equation: Any, work: int) -> None:
        """Count the work and the traffic of an equation."""
        self.work += work
        self.bytes += traffic(equation)

    def leaf(self, equation: Any, depth: int, work: int) -> None:
        """Add an equation whose results are ``depth`` later than its latest operand."""
        self.node(equation, equation.invars, equation.outvars, depth)
        self.count(equation, work)

    def opaque(self, equation: Any, reason: str) -> None:
        """Add an equation that could not be entered, as one operation."""
        self.note(equation, f"{reason}; counted as one operation")
        self.leaf(equation, 1, elements(equation))
        self.lose(equation.invars)

    def enter(self, equation: Any, transfer: Any, written: Sequence[Any] = ()) -> None:
        """Add a node with inner programs, and references that they have ``written``."""
        self.node(equation, equation.invars, [*equation.outvars, *written], 0, transfer)
        self.work += transfer.totals.work
        self.bytes += transfer.totals.bytes

    def call(self, equation: Any, block: Block, first: int = 0, times: int = 1) -> None:
        """Add a program that takes the operands from number ``first`` on.

        Afterwards references hold the values that it has written.
        """
        operands = range(first, len(equation.invars))
        written = [equation.invars[operands[i]] for i in block.references]
        transfer = CalledProgram(
            block, len(equation.invars), operands, range(len(block.ends)), times
        )
        self.enter(equation, transfer, written)


def _ruled(reading: Reading, equation: Any) -> None:
    """An equation whose depth follows from its shapes."""
    rule = primitive(equation)
    depth = rule.depth(equation)
    if rule.kind == "collective":
        try:
            depth += ceil_log2(counts.devices(equation, reading.axes))
        except KeyError as unbound:
            reading.note(equation, f"the size of axis {unbound} is not known here")
    reading.leaf(equation, depth, rule.work(equation))
    if rule.bound:
        reading.note(equation, rule.bound)
        reading.lose(equation.invars)


Enter = Callable[[Reading, Any], None]
