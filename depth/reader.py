"""Reading a program: each of its jaxprs becomes a graph once, and every equation a node.

An equation whose depth follows from its shapes has it from the table of primitives. One with inner
programs or references has a function here, which adds its nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from depth import counts
from depth.counts import ceil_log2, elements, size, traffic
from depth.graph import START, Block, Branches, Call, Node, Scan, Totals, Transfer, While
from depth.jaxprs import (
    NOWHERE,
    Location,
    called,
    inside,
    is_literal,
    is_reference,
    live_equations,
    location,
    scan_parts,
    without_constants,
)
from depth.known import Known
from depth.loops import Expected, WhileLoop, while_loop
from depth.maxplus import Algebra
from depth.platforms import platform
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
            kind = primitive(equation).kind
            enter = ENTERED.get(equation.primitive.name) or ENTERED.get(kind) or _ruled
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
        transfer = Call(block, len(equation.invars), operands, range(len(block.ends)), times)
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
ENTERED: dict[str, Enter] = {}  # by name or kind of the primitive


def enters(*names: str) -> Callable[[Enter], Enter]:
    """Register the function for these primitives, or kinds of them."""

    def register(function: Enter) -> Enter:
        ENTERED.update(dict.fromkeys(names, function))
        return function

    return register


# -- calls ----------------------------------------------------------------------------------------


@enters("call", "derivative rule")
def call(reading: Reading, equation: Any) -> None:
    """A program called with the operands of the equation, as the platform lowers it."""
    lowered = getattr(equation.primitive, "lowered", None)
    program = lowered(platform(), equation) if lowered else called(equation)
    if program is None:
        return reading.opaque(equation, "the program that it calls is not visible")
    reading.call(equation, reading.inner(equation, program, reading.integers(equation)))


@enters("shard_map")
def shard_map(reading: Reading, equation: Any) -> None:
    """The program of one device, which knows the sizes of the mesh.

    Its work counts for every device.
    """
    params, mesh = equation.params, equation.params["mesh"]
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    manual = params.get("manual_axes", params.get("newly_manual_axes", mesh.axis_names))
    block = reading.inner(equation, params["jaxpr"], axes=sizes)
    reading.call(equation, block, times=prod(sizes[name] for name in manual))


@enters("custom_linear_solve")
def custom_linear_solve(reading: Reading, equation: Any) -> None:
    """Add ``solve``, with its constants and the right-hand sides."""
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    sources = [*range(first, first + lengths.solve), *range(sum(lengths), len(equation.invars))]
    block = reading.inner(equation, jaxprs.solve)
    reading.enter(equation, Call(block, len(equation.invars), sources, range(len(block.outputs))))


@enters("call_hi_primitive", "call_hi_primitive_linearized")
def call_hi_primitive(reading: Reading, equation: Any) -> None:
    """A primitive that expands to a program, as `jax.lax.custom_root` since jax 0.12."""
    known, avals = equation.params.get("_prim"), [atom.aval for atom in equation.invars]
    try:
        jaxpr = jax.make_jaxpr(
            lambda *flat: known.expand(*jax.tree.unflatten(known.in_tree, flat))
        )(*avals)
    except Exception as error:  # whatever a foreign `expand` raises, the answer is a lower bound
        return reading.opaque(equation, f"it could not be expanded ({type(error).__name__})")
    reading.call(equation, reading.inner(equation, jaxpr, reading.integers(equation)))


# -- branches and loops ---------------------------------------------------------------------------


@enters("cond")
def cond(reading: Reading, equation: Any) -> None:
    """One of several programs.

    Of `jax.lax.platform_dependent` it is the one that is lowered for jax's default device.
    """
    branches, platforms = equation.params["branches"], equation.params.get("branches_platforms")
    known = reading.integers(equation)[1:]
    if not platforms:
        blocks = [reading.inner(equation, branch, known) for branch in branches]
        reading.enter(equation, Branches(blocks))
        for block in blocks:
            reading.lose_written(equation, block, 1)
        return
    here = platform()
    for names, branch in sorted(zip(platforms, branches, strict=True), key=lambda x: x[0] is None):
        if names is None or here in names:
            return reading.call(equation, reading.inner(equation, branch, known), first=1)
    reading.opaque(equation, f"it has no program for {here}")


@enters("scan")
def scan(reading: Reading, equation: Any) -> None:
    """A program repeated a known number of times."""
    params, (consts, carry, _) = equation.params, scan_parts(equation)
    known = [*reading.integers(equation)[:consts], *[None] * (len(equation.invars) - consts)]
    block = reading.inner(equation, params["jaxpr"], known)
    reading.lose_written(equation, block, 0)  # first: the second trip reads what the first has left
    length, unroll = params["length"], params.get("unroll", 1)
    steps = max(1, length if unroll is True else min(int(unroll), length))
    reading.enter(equation, Scan(block, consts, carry, length, steps))


@enters("while")
def repeat(reading: Reading, equation: Any) -> None:
    """A program repeated while a condition holds."""
    params, known = equation.params, reading.integers(equation)
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    blank = [None] * (len(known) - second)
    condition = reading.inner(equation, params["cond_jaxpr"], [*known[:first], *blank])
    before = set(reading.reader.expected)
    body = reading.inner(equation, params["body_jaxpr"], [*known[first:second], *blank])
    within = reading.reader.expected.keys() - before
    reading.lose_written(equation, condition, 0)
    reading.lose_written(equation, body, first)
    loop = while_loop(equation, reading.caller)
    trips, proven = reading.reader.count_trips(equation, known, loop)
    if trips == 0:  # nor are there trips of the loops inside
        for each in within:
            reading.reader.expected.pop(each, None)
    sizes = condition, body, first, second - first
    if trips is None:
        one = While(*sizes, 1)
        deeper = int(one.matrix(Algebra(one.longest)).max(initial=0))
        reading.note(
            equation,
            f"the number of trips is not known, so none is counted (with one: depth {deeper}); "
            f"give trip_counts={{{loop.key!r}: ...}}",
        )
    reading.enter(equation, While(*sizes, trips or 0, proven, trips is not None))


# -- operations given as programs -----------------------------------------------------------------


def _tree(reading: Reading, equation: Any, leaves: int) -> int:
    """The depth of a tree of the program that combines two elements."""
    block = reading.inner(equation, equation.params["jaxpr"])
    return ceil_log2(leaves) * max(block.ready(Algebra(block.longest)), default=0)


@enters("reduce")
def reduce(reading: Reading, equation: Any) -> None:
    """A tree of the given operation."""
    depth = _tree(reading, equation, counts.reduced(equation))
    reading.leaf(equation, depth, size(equation.invars[0]))


@enters("reduce_window")
def reduce_window(reading: Reading, equation: Any) -> None:
    """A tree of the given operation over every window."""
    window = counts.window(equation)
    reading.leaf(equation, _tree(reading, equation, window), window * size(equation.outvars[0]))


# -- mutable references ---------------------------------------------------------------------------


@enters("new_ref", "empty_ref", "get", "freeze")
def move(reading: Reading, equation: Any) -> None:
    """Read or write a reference."""
    reading.leaf(equation, 0, 0)


@enters("swap", "masked_swap")
def swap(reading: Reading, equation: Any) -> None:
    """Return the contents of a reference, and replace them.

    Afterwards it is as late as the written value, and as the part of it that is kept.
    """
    reference, value, *rest = equation.invars
    whole = size(value) == prod(reference.aval.inner_aval.shape) and not rest
    reading.node(equation, [reference, *rest], equation.outvars)
    reading.node(equation, [value, *rest, *([] if whole else [reference])], [reference])
    reading.count(equation, 0)


@enters("addupdate", "accum_grad_in_ref")
def add_update(reading: Reading, equation: Any) -> None:
    """Add to a reference."""
    reading.node(equation, equation.invars, [equation.invars[0]], 1)
    reading.count(equation, size(equation.invars[1]))


@enters("pallas_call")
def pallas_call(reading: Reading, equation: Any) -> None:
    """A kernel, on references to blocks of its operands and results.

    One step of the grid counts.
    """
    kernel, grid = without_constants(equation.params["jaxpr"]), equation.params["grid_mapping"].grid
    operands, results = len(equation.invars), len(equation.outvars)
    if len(kernel.invars) < operands + results or not all(map(is_reference, kernel.invars)):
        return reading.opaque(equation, "a kernel with operands of an unknown kind")
    block = reading.inner(equation, kernel)
    steps = prod(extent for extent in grid if isinstance(extent, int))
    if steps != 1 or not all(isinstance(extent, int) for extent in grid):
        reading.note(equation, "the steps of its grid are taken as side by side; one counts")
    ends = [len(block.outputs) + operands + i for i in range(results)]
    sources = [*range(operands), *[None] * (block.inputs - operands)]
    reading.enter(equation, Call(block, operands, sources, ends, steps))


@enters("reference")
def foreign(reading: Reading, equation: Any) -> None:
    """A primitive with state that is not followed."""
    reading.opaque(equation, "it keeps state that is not followed")
