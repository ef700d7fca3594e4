"""Equations with inner programs or references.

One function for each kind, which adds the nodes to the graph.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax

from depth.control import Branches, Call, Scan, While
from depth.counts import ceil_log2, elements, overlap, reduced, size, window
from depth.graph import Block
from depth.jaxprs import called, is_reference, scan_parts, without_constants
from depth.maxplus import Algebra
from depth.platforms import platform

# The reading of one jaxpr (`depth.reader`), and an equation in it.
Enter = Callable[[Any, Any], None]
ENTERED: dict[str, Enter] = {}


def enters(*names: str) -> Callable[[Enter], Enter]:
    """Register the function for these primitives, or kinds of them."""

    def register(function: Enter) -> Enter:
        ENTERED.update(dict.fromkeys(names, function))
        return function

    return register


# -- calls ----------------------------------------------------------------------------------------


def run(reading: Any, equation: Any, jaxpr: Any) -> None:
    """Add a program whose inputs are the operands and whose outputs are the results."""
    enter_call(reading, equation, reading.inner(equation, jaxpr, reading.integers(equation)))


def enter_call(reading: Any, equation: Any, block: Block, first: int = 0, times: int = 1) -> None:
    """Add a program that takes the operands from number ``first`` on.

    Afterwards references hold the values that it has written.
    """
    operands = range(first, len(equation.invars))
    left = [equation.invars[operands[i]] for i in block.references]
    transfer = Call(block, len(equation.invars), operands, range(len(block.ends)), times)
    reading.enter(equation, transfer, [*equation.outvars, *left])


def fits(equation: Any, jaxpr: Any) -> bool:
    """Whether the program has the operands and results of the equation."""
    return len(jaxpr.invars) == len(equation.invars) and len(jaxpr.outvars) == len(equation.outvars)


def opaque(reading: Any, equation: Any, reason: str) -> None:
    """Add an equation that could not be entered, as one operation."""
    reading.note(equation, reason)
    reading.leaf(equation, 1, elements(equation))
    reading.lose(equation.invars)


@enters("call", "derivative rule")
def call(reading: Any, equation: Any) -> None:
    """A program called with the operands of the equation."""
    program = called(equation)
    if program is None:
        reason = "the program that it calls is not visible; counted as one operation"
        return opaque(reading, equation, reason)
    run(reading, equation, program)


@enters("shard_map")
def shard_map(reading: Any, equation: Any) -> None:
    """The program of one device, which knows the sizes of the mesh.

    Its work counts for every device.
    """
    mesh = equation.params["mesh"]
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    block = reading.inner(equation, equation.params["jaxpr"], axes=sizes)
    manual = equation.params.get(
        "manual_axes", equation.params.get("newly_manual_axes", mesh.axis_names)
    )
    enter_call(reading, equation, block, times=prod(sizes[name] for name in manual))


@enters("custom_linear_solve")
def custom_linear_solve(reading: Any, equation: Any) -> None:
    """Add ``solve``, with its constants and the right-hand sides."""
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    sources = [*range(first, first + lengths.solve), *range(sum(lengths), len(equation.invars))]
    block = reading.inner(equation, jaxprs.solve)
    reading.enter(equation, Call(block, len(equation.invars), sources, range(len(block.outputs))))


@enters("call_hi_primitive", "call_hi_primitive_linearized")
def call_hi_primitive(reading: Any, equation: Any) -> None:
    """A primitive that expands to a program."""
    primitive = equation.params.get("_prim")
    try:
        avals = [atom.aval for atom in equation.invars]
        jaxpr = jax.make_jaxpr(
            lambda *flat: primitive.expand(*jax.tree.unflatten(primitive.in_tree, flat))
        )(*avals)
    except Exception as error:  # whatever a foreign `expand` raises, the answer is a lower bound
        return opaque(
            reading,
            equation,
            f"it could not be expanded ({type(error).__name__}); counted as one operation",
        )
    inner = without_constants(jaxpr)
    if not fits(equation, inner):
        return opaque(
            reading, equation, "its expansion has other operands; counted as one operation"
        )
    run(reading, equation, inner)


# -- branches and loops ---------------------------------------------------------------------------


def lose(reading: Any, equation: Any, block: Block, first: int) -> None:
    """Record if a branch or a loop writes to references among its operands from ``first`` on.

    Only calls return the final contents of references. Their earlier contents may be later than
    that, so they are not a bound.
    """
    written = [equation.invars[first + i] for i, end in block.references.items() if end != 1 + i]
    if written:
        reading.note(
            equation,
            "it writes to a mutable reference, and later reads of it are not made to wait",
        )
        reading.lose(written)


@enters("cond")
def cond(reading: Any, equation: Any) -> None:
    """One of several programs."""
    known = reading.integers(equation)[1:]
    if equation.params.get("branches_platforms"):
        return lowered(reading, equation, known)
    blocks = [reading.inner(equation, branch, known) for branch in equation.params["branches"]]
    reading.enter(equation, Branches(blocks))
    for block in blocks:
        lose(reading, equation, block, 1)


def lowered(reading: Any, equation: Any, known: list[Any]) -> None:
    """The one program of `jax.lax.platform_dependent` that is lowered for jax's default device."""
    branches = dict(
        zip(equation.params["branches_platforms"], equation.params["branches"], strict=True)
    )
    here = platform()
    chosen = next(
        (branch for names, branch in branches.items() if names and here in names),
        branches.get(None),
    )
    if chosen is None:
        return opaque(reading, equation, f"it has no program for {here}; counted as one operation")
    enter_call(reading, equation, reading.inner(equation, chosen, known), first=1)


@enters("scan")
def scan(reading: Any, equation: Any) -> None:
    """A program repeated a known number of times."""
    consts, carry, _ = scan_parts(equation)
    known = [*reading.integers(equation)[:consts], *[None] * (len(equation.invars) - consts)]
    block = reading.inner(equation, equation.params["jaxpr"], known)
    lose(
        reading, equation, block, 0
    )  # before it is entered: the second trip reads what the first has left
    reading.enter(
        equation, Scan(block, consts, carry, equation.params["length"], _unroll(equation))
    )


@enters("while")
def while_loop(reading: Any, equation: Any) -> None:
    """A program repeated while a condition holds."""
    params, known = equation.params, reading.integers(equation)
    in_condition, in_body = params["cond_nconsts"], params["body_nconsts"]
    blank = [None] * (len(known) - in_condition - in_body)
    condition = reading.inner(equation, params["cond_jaxpr"], [*known[:in_condition], *blank])
    before = dict(reading.reader.expected)
    body = reading.inner(
        equation, params["body_jaxpr"], [*known[in_condition : in_condition + in_body], *blank]
    )
    lose(reading, equation, condition, 0)
    lose(reading, equation, body, in_condition)
    within = reading.reader.expected.keys() - before.keys()
    trips, proven = reading.count_trips(equation, known)
    if trips == 0:  # nor are there trips of the loops inside
        for each in within:
            reading.reader.expected.pop(each, None)
    if trips is None:
        one = While(condition, body, in_condition, in_body, 1)
        deeper = int(one.matrix(Algebra(one.longest)).max(initial=0))
        reading.note(
            equation,
            f"the number of trips is not known, so none is counted (with one: depth {deeper}); "
            f"give trip_counts={{{reading.loop(equation).key!r}: ...}}",
        )
    reading.enter(
        equation,
        While(condition, body, in_condition, in_body, trips or 0, proven, trips is not None),
    )


# -- operations given as programs -----------------------------------------------------------------


def combining(reading: Any, equation: Any, parameter: str = "jaxpr") -> int:
    """The depth of the program that combines two elements in a reduction."""
    block = reading.inner(equation, equation.params[parameter])
    return max(block.ready(Algebra(block.longest)), default=0)


@enters("reduce")
def reduce(reading: Any, equation: Any) -> None:
    """A tree of the given operation."""
    depth = ceil_log2(reduced(equation)) * combining(reading, equation)
    reading.leaf(equation, depth, size(equation.invars[0]))


@enters("reduce_window")
def reduce_window(reading: Any, equation: Any) -> None:
    """A tree of the given operation over every window."""
    depth = ceil_log2(window(equation)) * combining(reading, equation)
    reading.leaf(equation, depth, window(equation) * size(equation.outvars[0]))


@enters("select_and_scatter")
def select_and_scatter(reading: Any, equation: Any) -> None:
    """A selection from every window, then a tree over the windows that contain an element."""
    selecting = ceil_log2(window(equation)) * combining(reading, equation, "select_jaxpr")
    adding = ceil_log2(overlap(equation)) * combining(reading, equation, "scatter_jaxpr")
    reading.leaf(equation, selecting + adding, window(equation) * size(equation.invars[1]))


# -- mutable references ---------------------------------------------------------------------------


@enters("new_ref", "empty_ref", "get", "freeze")
def move(reading: Any, equation: Any) -> None:
    """Read or write a reference."""
    reading.leaf(equation, 0, 0)


@enters("swap", "masked_swap")
def swap(reading: Any, equation: Any) -> None:
    """Return the contents of a reference, and replace them.

    Afterwards it is as late as the written value, and as the part of it that is kept.
    """
    reference, value, *rest = equation.invars
    whole = size(value) == prod(reference.aval.inner_aval.shape) and not rest
    reading.node(equation, [reference, *rest], equation.outvars)
    reading.node(equation, [value, *rest, *([] if whole else [reference])], [reference])
    reading.count(equation, 0)


@enters("addupdate", "accum_grad_in_ref")
def add_update(reading: Any, equation: Any) -> None:
    """Add to a reference."""
    reading.node(equation, equation.invars, [equation.invars[0]], 1)
    reading.count(equation, size(equation.invars[1]))


@enters("run_state")
def run_state(reading: Any, equation: Any) -> None:
    """A program on references that are initialised by the operands.

    Its results are their final contents.
    """
    block = reading.inner(equation, equation.params["jaxpr"])
    if block.inputs != len(equation.invars) or len(block.references) != len(equation.outvars):
        return opaque(
            reading, equation, "references without a first value; counted as one operation"
        )
    outputs = len(block.outputs)
    transfer = Call(
        block, block.inputs, range(block.inputs), range(outputs, outputs + len(block.references))
    )
    reading.enter(equation, transfer)


@enters("pallas_call")
def pallas_call(reading: Any, equation: Any) -> None:
    """A kernel, on references to blocks of its operands and results.

    One step of the grid counts.
    """
    kernel, grid = without_constants(equation.params["jaxpr"]), equation.params["grid_mapping"].grid
    operands, results = len(equation.invars), len(equation.outvars)
    if len(kernel.invars) < operands + results or not all(
        is_reference(atom) for atom in kernel.invars
    ):
        return opaque(
            reading, equation, "a kernel with operands of an unknown kind; counted as one operation"
        )
    block = reading.inner(equation, kernel)
    steps = prod(extent for extent in grid if isinstance(extent, int))
    if steps != 1 or not all(isinstance(extent, int) for extent in grid):
        reading.note(equation, "the steps of its grid are taken as side by side; one counts")
    ends = [len(block.outputs) + operands + i for i in range(results)]
    sources = [*range(operands), *[None] * (block.inputs - operands)]
    reading.enter(equation, Call(block, operands, sources, ends, steps))


@enters("reference")
def foreign(reading: Any, equation: Any) -> None:
    """A primitive with state that is not followed."""
    opaque(reading, equation, "it keeps state that is not followed; counted as one operation")


def _unroll(equation: Any) -> int:
    """The number of steps of a scan in one trip of its loop."""
    unroll, length = equation.params.get("unroll", 1), equation.params["length"]
    return max(1, length if unroll is True else min(int(unroll), length))
