"""A program evaluated entry by entry, for one of many examples.

A kernel that runs a whole recurrence keeps the state in registers, and a register has no axes. So
arrays are taken apart: an array is a table of its entries, and moving data, be it a slice, a
transpose or a concatenation, costs nothing. What is left are operations on single entries.

A batch of states is taken apart into examples, which is `jax.vmap` reversed: the batch axes are
followed through the program, and one example is evaluated. That is right only if the program treats
all examples alike and mixes none; otherwise it is refused.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import CannotFuse, Code, convert, operation
from depth.jaxprs import Program, called, constants_of, interpret
from depth.primitives import primitive

OfEntries = Callable[[Sequence[Any]], Any]  # a function of entries
Axes = tuple[int | None, ...]  # of the examples: for each batch axis of the state, or None


class Entries(NamedTuple):
    """An array, entry by entry.

    Attributes:
        table: of objects, with the shape of the array, but 1 on the axes of the examples.
        examples: for each batch axis of the state its axis here, or None.
    """

    table: np.ndarray
    examples: Axes


def evaluate(closed: Any, operands: Sequence[Entries], apply: Code) -> list[Entries]:
    """The results of a closed program.

    ``apply`` evaluates functions of scalars on entries.

    Raises:
        CannotFuse: an operation has no counterpart in a kernel, or examples are not independent.
    """

    def literal(atom: Any) -> Entries:
        return _constant(np.asarray(atom.val, atom.aval.dtype), apply)

    program = Program.of(closed)
    constants = [_constant(np.asarray(value), apply) for value in constants_of(closed)]
    known = program.known([*constants, *operands])
    return interpret(program, known, program.outvars, partial(_results, apply), literal)


def _constant(value: np.ndarray, apply: Code) -> Entries:
    """An array of numbers, which all examples share."""
    return Entries(table_of(list(value.ravel()), value.shape), (None,) * apply.batches)


def table_of(entries: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """A table of entries, in the order of memory."""
    return np.fromiter(entries, object, len(entries)).reshape(shape)


def _results(apply: Code, equation: Any, operands: list[Entries]) -> Sequence[Entries]:
    kind, name = primitive(equation).kind, equation.primitive.name
    for variable in equation.outvars:
        if variable.aval.dtype in (np.float64, np.complex64, np.complex128):
            raise CannotFuse(f"{name} computes in {variable.aval.dtype}")
    if (inner := called(equation)) is not None:
        return evaluate(inner, operands, apply)
    rule = RULES.get(name) or RULES.get(kind)
    if rule is None or (rule is _moved and not primitive(equation).numpy):
        raise CannotFuse(f"{name} has no counterpart in a kernel")
    return rule(apply, equation, operands)


# -- examples -------------------------------------------------------------------------------------


def _together(operands: Sequence[Entries], rank: int) -> tuple[list[np.ndarray], Axes]:
    """Tables of this rank that fit each other, and the axes of the examples."""
    whole = [x.examples for x in operands if x.table.ndim == rank]
    each = [{*axes} - {None} for axes in zip(*whole, strict=True)]
    known = [axis for axes in each for axis in axes]
    if any(len(axes) > 1 for axes in each) or len({*known}) < len(known):
        raise CannotFuse("examples are combined with each other")
    found = tuple(axes.pop() if axes else None for axes in each)
    tables = [x.table.reshape((1,) * (rank - x.table.ndim) + x.table.shape) for x in operands]
    return [_narrowed(table, found) for table in tables], found


def _narrowed(table: np.ndarray, axes: Axes) -> np.ndarray:
    """The table with size 1 on the axes of the examples.

    Raises:
        CannotFuse: it has different entries along them.
    """
    table = narrow(table, axes)
    if any(axis is not None and table.shape[axis] > 1 for axis in axes):
        raise CannotFuse("this array has a batch axis where none is allowed")
    return table


def narrow(table: np.ndarray, axes: Axes) -> np.ndarray:
    """The table with size 1 on those of the axes along which all its entries are the same."""
    numbers = _numbered(table) if table.dtype == object else table
    for axis in axes:
        if axis is not None and (numbers == (first := numbers.take([0], axis))).all():
            numbers = first
            table = table.take([0], axis)
    return table


def _numbered(table: np.ndarray) -> np.ndarray:
    """A number for each entry, which is that of the same object elsewhere."""
    return np.fromiter(map(id, table.flat), np.int64, table.size).reshape(table.shape)


def own_shape(shape: tuple[int, ...], axes: Axes | None) -> tuple[int, ...]:
    """The shape of a table of one example; of what is not used, that of no entries."""
    own = tuple(1 if axis in (axes or ()) else n for axis, n in enumerate(shape))
    return (0,) if axes is None else own


def _own(equation: Any, examples: Axes, axes: Sequence[int]) -> None:
    """Refuse an operation along ``axes``, if examples are on one of them."""
    if any(axis in axes for axis in examples if axis is not None):
        raise CannotFuse(f"{equation.primitive.name} combines examples with each other")


# -- rules ----------------------------------------------------------------------------------------


def _of_rows(call: OfEntries, rows: np.ndarray) -> np.ndarray:
    """A table of what a function makes of each row of another, along its last axis."""
    shape = rows.shape[:-1]
    return table_of([call(list(rows[index])) for index in np.ndindex(shape)], shape)


def _of_each(call: OfEntries, *tables: np.ndarray) -> np.ndarray:
    """A table of what a function makes of the entries of others."""
    return _of_rows(call, np.stack(np.broadcast_arrays(*tables), -1))


def _elementwise(out: Any, operands: list[Entries], call: OfEntries) -> Entries:
    tables, examples = _together(operands, out.aval.ndim)
    found = _of_each(call, *tables)
    return Entries(np.broadcast_to(found, own_shape(out.aval.shape, examples)), examples)


def _named(name: str, dtype: Any, apply: Code) -> OfEntries:
    """The operation of entries of a dtype that a primitive stands for."""
    return partial(apply, operation(name, dtype, dtype))


def _computed(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """An elementwise operation."""
    (out,), count = equation.outvars, len(equation.invars)
    own = operation(equation.primitive.name, equation.invars[-1].aval.dtype, out.aval.dtype, count)
    return [_elementwise(out, operands, partial(apply, own))]


def _counted(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """An ``iota``."""
    rule: Any = primitive(equation).numpy
    (counts,) = rule(equation, operands)
    return [_constant(counts.astype(equation.outvars[0].aval.dtype), apply)]


def _power(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """Integer powers as products, each of which is rounded."""
    (out,), power = equation.outvars, equation.params["y"]
    multiply, divide = (_named(name, out.aval.dtype, apply) for name in ("mul", "div"))
    one = np.ones((), out.aval.dtype)[()]

    def of(entries: Sequence[Any]) -> Any:
        factors, (x,) = [], entries
        for k, bit in enumerate(reversed(f"{abs(power):b}")):
            x = multiply([x, x]) if k else x
            factors += [x] if bit == "1" else []
        found = reduce(lambda x, y: multiply([x, y]), factors) if factors else one
        return divide([one, found]) if power < 0 else found

    return [_elementwise(out, operands, of)]


def _clamped(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """Entries between two others; the upper ones, where these are below the lower ones."""
    (out,) = equation.outvars
    larger, smaller = (_named(name, out.aval.dtype, apply) for name in ("max", "min"))

    def of(entries: Sequence[Any]) -> Any:
        least, x, most = entries
        return smaller([larger([x, least]), most])

    return [_elementwise(out, operands, of)]


def _branches(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """All branches are evaluated, as under `jax.vmap`."""
    which, *rest = operands
    results = [evaluate(inner, rest, apply) for inner in equation.params["branches"]]
    found = []
    for out, *cases in zip(equation.outvars, *results, strict=True):
        select = operation("select_n", out.aval.dtype, out.aval.dtype, len(cases) + 1)
        found.append(_elementwise(out, [which, *cases], partial(apply, select)))
    return found


def _between_two(apply: Code, equation: Any) -> OfEntries:
    """The operation of two entries that a primitive like ``reduce_sum`` or ``cumsum`` repeats."""
    own = equation.primitive.name.removeprefix("reduce_").removeprefix("cum")
    return _named(
        {"sum": "add", "prod": "mul"}.get(own, own), equation.outvars[0].aval.dtype, apply
    )


def _reduced(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """A reduction, as a tree."""
    call = _between_two(apply, equation)
    (operand,), axes = operands, tuple(equation.params["axes"])
    _own(equation, operand.examples, axes)
    kept = [axis for axis in range(operand.table.ndim) if axis not in axes]
    examples = tuple(None if axis is None else kept.index(axis) for axis in operand.examples)
    shape = own_shape(equation.outvars[0].aval.shape, examples)
    rows = np.moveaxis(operand.table, axes, range(-len(axes), 0)).reshape((*shape, -1))
    if not rows.shape[-1]:
        raise CannotFuse(f"{equation.primitive.name} reduces an axis of size 0")
    return [Entries(_of_rows(partial(_tree, call), rows), examples)]


def _tree(call: OfEntries, entries: list[Any]) -> Any:
    while len(entries) > 1:
        pairs = [call(entries[k : k + 2]) for k in range(0, len(entries) - 1, 2)]
        entries = pairs + entries[2 * len(pairs) :]
    return entries[0]


def _accumulated(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    call = _between_two(apply, equation)
    (operand,), axis = operands, equation.params["axis"]
    _own(equation, operand.examples, [axis])
    rows = np.moveaxis(np.array(operand.table), axis, 0)
    order = range(len(rows))[::-1] if equation.params["reverse"] else range(len(rows))
    for before, after in pairwise(order):
        rows[[after]] = _of_each(call, rows[[before]], rows[[after]])
    return [Entries(np.moveaxis(rows, 0, axis), operand.examples)]


def _product(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """A product as sums: ``[*batch, rows, 1, terms]`` times ``[*batch, 1, columns, terms]``."""
    (out,), arranged = equation.outvars, list[Entries]()
    dtype, rank = out.aval.dtype, out.aval.ndim
    working = dtype if np.issubdtype(dtype, np.integer) else np.dtype(np.float32)
    numbers = zip(equation.invars, operands, *equation.params["dimension_numbers"], strict=True)
    for variable, operand, own, shared in numbers:
        _own(equation, operand.examples, own)
        free = [axis for axis in range(operand.table.ndim) if axis not in (*own, *shared)]
        start = rank - len(free) if arranged else len(shared)
        after = [*range(len(shared)), *range(start, start + len(free))]
        place = dict(zip((*shared, *free), after, strict=True))
        cast = partial(apply, convert(variable.aval.dtype, working))
        table = _of_each(cast, operand.table).transpose((*shared, *free, *own))
        table = table.reshape((*table.shape[: len(after)], -1))
        ones = [axis for axis in range(rank) if axis not in after]
        examples = tuple(None if axis is None else place[axis] for axis in operand.examples)
        arranged.append(Entries(np.expand_dims(table, ones), examples))
    tables, examples = _together(arranged, rank + 1)
    shape = own_shape(out.aval.shape, examples)
    terms = tables[0].shape[-1]
    if not terms:
        raise CannotFuse("a product has no terms")
    left, right = (np.broadcast_to(x, (*shape, terms)) for x in tables)
    multiply, add = (_named(name, working, apply) for name in ("mul", "add"))
    chains = min(-(-limits.SUMS * apply.threads // math.prod(shape)), terms)
    sums = [_of_each(multiply, left[..., k], right[..., k]) for k in range(chains)]

    def added(entries: Sequence[Any]) -> Any:
        return add([entries[0], multiply(entries[1:])])

    def total(entries: Sequence[Any]) -> Any:
        return apply(convert(working, dtype), [reduce(lambda x, y: add([x, y]), entries)])

    for k in range(chains, terms):  # of all sums, as their terms are neighbours in memory
        sums[k % chains] = _of_each(added, sums[k % chains], left[..., k], right[..., k])
    return [Entries(_of_each(total, *sums), examples)]


# -- moves ----------------------------------------------------------------------------------------


def _cut(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """A dynamic slice from indices that are known."""
    (array, *starts), cuts = operands, []
    sizes = zip(equation.params["slice_sizes"], equation.invars[0].aval.shape, strict=True)
    for start, (size, full) in zip(starts, sizes, strict=True):
        index = start.table[()] if size < full else 0
        if not isinstance(index, int | np.integer):
            raise CannotFuse("dynamic_slice from an index that the program computes")
        first = min(max(int(index), 0), full - size)
        cuts.append(slice(first, first + size))
    return _rearranged(equation, [array], lambda _, arrays: [arrays[0][tuple(cuts)]])


def _moved(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    return _rearranged(equation, operands, primitive(equation).numpy)


def _rearranged(equation: Any, operands: list[Entries], rule: Any) -> list[Entries]:
    """A move of entries: the examples are where the same move puts their numbers."""
    shapes = [x.aval.shape for x in equation.invars[: len(operands)]]
    entries = {id(x): x for each in operands for x in each.table.flat}
    numbers = [_numbered(each.table) for each in operands]
    tables = rule(equation, list(map(np.broadcast_to, numbers, shapes)))
    along: list[list[int | None]] = [[] for _ in tables]
    for axes in zip(*(each.examples for each in operands), strict=True):
        sizes = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if axis is not None}
        places = rule(equation, list(map(_places, shapes, axes)))
        for examples, each in zip(along, places, strict=True):
            examples.append(_axis_of(equation, each, sizes))
    results = []
    for table, examples in zip(tables, along, strict=True):
        own = _narrowed(np.asarray(table), tuple(examples))
        found = table_of([entries[x] for x in own.flat], own.shape)
        results.append(Entries(found, tuple(examples)))
    return results


def _places(shape: tuple[int, ...], axis: int | None) -> np.ndarray:
    """For each entry of an array the example that it is of, along one batch axis; -1 if of all."""
    own = -1 if axis is None else np.indices(shape, sparse=True)[axis]
    return np.broadcast_to(own, shape)


def _axis_of(equation: Any, places: np.ndarray, sizes: set[int]) -> int | None:
    """The inverse of `_places`."""
    if (places < 0).all():
        return None
    for axis, size in enumerate(places.shape):
        if size in sizes and ((places == _places(places.shape, axis)) | (places < 0)).all():
            return axis
    raise CannotFuse(f"{equation.primitive.name} combines examples with each other")


RULES: dict[str, Callable[[Code, Any, list[Entries]], list[Entries]]] = {
    "cond": _branches,
    "dot_general": _product,
    "dynamic_slice": _cut,
    "iota": _counted,
    "integer_pow": _power,
    "clamp": _clamped,
    "reduction": _reduced,
    "cumulative": _accumulated,
    "move": _moved,
    "elementwise": _computed,
}
"""By the name of a primitive, or by its kind."""
