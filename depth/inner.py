"""Equations with inner programs or references: each has a function here, which adds its nodes."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax

from depth import counts
from depth.counts import ceil_log2, size
from depth.graph import Branches, CalledProgram, Scan, While
from depth.jaxprs import called, is_reference, scan_parts, without_constants
from depth.loops import while_loop
from depth.maxplus import Algebra
from depth.platforms import platform
from depth.reader import Enter, Reader, Reading, TripCounts

ENTERED: dict[str, Enter] = {}  # by name or kind of the primitive


def reader(trip_counts: TripCounts = None) -> Reader:
    """A reader of one program, which enters all that has a function here."""
    return Reader(ENTERED, trip_counts)


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
    params = equation.params
    mesh = equation.params["mesh"]
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
    reading.enter(
        equation, CalledProgram(block, len(equation.invars), sources, range(len(block.outputs)))
    )


@enters("call_hi_primitive", "call_hi_primitive_linearized")
def call_hi_primitive(reading: Reading, equation: Any) -> None:
    """A primitive that expands to a program, as `jax.lax.custom_root` since jax 0.12."""
    known = equation.params.get("_prim")
    avals = [atom.aval for atom in equation.invars]
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
    branches = equation.params["branches"]
    platforms = equation.params.get("branches_platforms")
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
    length = params["length"]
    unroll = params.get("unroll", 1)
    steps = max(1, length if unroll is True else min(int(unroll), length))
    reading.enter(equation, Scan(block, consts, carry, length, steps))


@enters("while")
def repeat(reading: Reading, equation: Any) -> None:
    """A program repeated while a condition holds."""
    params = equation.params
    known = reading.integers(equation)
    first = params["cond_nconsts"]
    second = params["cond_nconsts"] + params["body_nconsts"]
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
    kernel = without_constants(equation.params["jaxpr"])
    grid = equation.params["grid_mapping"].grid
    operands, results = len(equation.invars), len(equation.outvars)
    if len(kernel.invars) < operands + results or not all(map(is_reference, kernel.invars)):
        return reading.opaque(equation, "a kernel with operands of an unknown kind")
    block = reading.inner(equation, kernel)
    steps = prod(extent for extent in grid if isinstance(extent, int))
    if steps != 1 or not all(isinstance(extent, int) for extent in grid):
        reading.note(equation, "the steps of its grid are taken as side by side; one counts")
    ends = [len(block.outputs) + operands + i for i in range(results)]
    sources = [*range(operands), *[None] * (block.inputs - operands)]
    reading.enter(equation, CalledProgram(block, operands, sources, ends, steps))


@enters("reference")
def foreign(reading: Reading, equation: Any) -> None:
    """A primitive with state that is not followed."""
    reading.opaque(equation, "it keeps state that is not followed")
