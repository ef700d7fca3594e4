"""A program evaluated entry by entry, for one of many examples.

A kernel that runs a whole recurrence keeps the state in registers, and a register has no axes. So
arrays are taken apart: an array is a table of its entries, and moving data, be it a slice, a
transpose or a concatenation, costs nothing. What is left are operations on single entries.

A batch of states is taken apart into examples, which is `jax.vmap` reversed: the batch axes are
followed through the program, and one example is evaluated. That is right only if the program treats
all examples alike and mixes none; otherwise it is refused.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import CannotFuse, Code, convert, operation
from deeppcr.lower.products import other_axes
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
    environment = program.environment([*constants, *operands])
    return interpret(program, environment, program.outvars, partial(_results, apply), literal)


def _constant(value: np.ndarray, apply: Code) -> Entries:
    """An array of numbers, which all examples share."""
    entries = list(map(apply.constant, value.ravel()))
    return Entries(table_of(entries, value.shape), (None,) * apply.batches)


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
    if rule is None or (rule is _by_numpy and not primitive(equation).numpy):
        raise CannotFuse(f"{name} has no counterpart in a kernel")
    return rule(apply, equation, operands)


# -- examples -------------------------------------------------------------------------------------


def _together(operands: Sequence[Entries], rank: int) -> tuple[list[np.ndarray], Axes]:
    """Tables of this rank that fit each other, and the axes of the examples."""
    axes: Axes = ()
    for places in zip(*(x.examples for x in operands if x.table.ndim == rank), strict=True):
        different = {*places} - {None}
        if len(different) > 1 or not different.isdisjoint(axes):
            raise CannotFuse("examples are combined with each other")
        axes += tuple(different) or (None,)
    tables = [x.table.reshape((1,) * (rank - x.table.ndim) + x.table.shape) for x in operands]
    return [_narrowed(table, axes) for table in tables], axes


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


def example_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of a table of one example."""
    return tuple(1 if axis in axes else n for axis, n in enumerate(shape))


def _check_separate(equation: Any, examples: Axes, axes: Collection[int]) -> None:
    """Refuse an operation along ``axes``, if examples are on one of them."""
    if not set(examples).isdisjoint(axes):
        raise CannotFuse(f"{equation.primitive.name} combines examples with each other")


# -- rules ----------------------------------------------------------------------------------------


def _placed(examples: Axes, place: Callable[[int], int]) -> Axes:
    """The axes of the examples after a move of axes."""
    return tuple(None if axis is None else place(axis) for axis in examples)


def _of_rows(call: OfEntries, rows: np.ndarray) -> np.ndarray:
    """A table of what a function makes of each row of another, along its last axis."""
    shape = rows.shape[:-1]
    return table_of([call(list(rows[index])) for index in np.ndindex(shape)], shape)


def _of_each(call: OfEntries, *tables: np.ndarray) -> np.ndarray:
    """A table of what a function makes of the entries of others."""
    return _of_rows(call, np.stack(np.broadcast_arrays(*tables), -1))


def _elementwise(out: Any, operands: list[Entries], call: OfEntries) -> Entries:
    tables, examples = _together(operands, out.aval.ndim)
    table = _of_each(call, *tables)
    return Entries(np.broadcast_to(table, example_shape(out.aval.shape, examples)), examples)


def _named(apply: Code, dtype: Any, *names: str) -> list[OfEntries]:
    """The operations of entries of a dtype that primitives stand for."""
    return [partial(apply, operation(name, dtype, dtype)) for name in names]


def _computed(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """An elementwise operation."""
    (out,) = equation.outvars
    dtype = equation.invars[-1].aval.dtype
    function = operation(equation.primitive.name, dtype, out.aval.dtype, len(equation.invars))
    return [_elementwise(out, operands, partial(apply, function))]


def _counted(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """An ``iota``."""
    rule: Any = primitive(equation).numpy
    (counts,) = rule(equation, operands)
    return [_constant(counts.astype(equation.outvars[0].aval.dtype), apply)]


def _power(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """Integer powers as products, each of which is rounded."""
    (out,) = equation.outvars
    power = equation.params["y"]
    multiply, divide = _named(apply, out.aval.dtype, "mul", "div")
    one = apply.constant(np.ones((), out.aval.dtype)[()])

    def of(entries: Sequence[Any]) -> Any:
        (x,) = entries
        factors = []
        for k, bit in enumerate(reversed(f"{abs(power):b}")):
            x = multiply([x, x]) if k else x
            factors += [x] if bit == "1" else []
        product = reduce(lambda x, y: multiply([x, y]), factors) if factors else one
        return divide([one, product]) if power < 0 else product

    return [_elementwise(out, operands, of)]


def _clamped(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """Entries between two others; the upper ones, where these are below the lower ones."""
    out = equation.outvars[0]
    larger, smaller = _named(apply, out.aval.dtype, "max", "min")

    def of(entries: Sequence[Any]) -> Any:
        least, x, most = entries
        return smaller([larger([x, least]), most])

    return [_elementwise(out, operands, of)]


def _branches(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """All branches are evaluated, as under `jax.vmap`."""
    which, *rest = operands
    results = [evaluate(inner, rest, apply) for inner in equation.params["branches"]]
    selected = []
    for out, *cases in zip(equation.outvars, *results, strict=True):
        select = operation("select_n", out.aval.dtype, out.aval.dtype, len(cases) + 1)
        selected.append(_elementwise(out, [which, *cases], partial(apply, select)))
    return selected


def _between_two(apply: Code, equation: Any) -> OfEntries:
    """The operation of two entries that a primitive like ``reduce_sum`` or ``cumsum`` repeats."""
    name = equation.primitive.name.removeprefix("reduce_").removeprefix("cum")
    name = {"sum": "add", "prod": "mul"}.get(name, name)
    return _named(apply, equation.outvars[0].aval.dtype, name)[0]


def _reduced(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """A reduction, as a tree."""
    call = _between_two(apply, equation)
    (operand,) = operands
    axes = tuple(equation.params["axes"])
    _check_separate(equation, operand.examples, axes)
    rest = other_axes(operand.table.ndim, axes)
    examples = _placed(operand.examples, rest.index)
    shape = example_shape(equation.outvars[0].aval.shape, examples)
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
    (operand,) = operands
    axis = equation.params["axis"]
    _check_separate(equation, operand.examples, [axis])
    rows = np.moveaxis(np.array(operand.table), axis, 0)
    order = range(len(rows))[::-1] if equation.params["reverse"] else range(len(rows))
    for before, after in pairwise(order):
        rows[[after]] = _of_each(call, rows[[before]], rows[[after]])
    return [Entries(np.moveaxis(rows, 0, axis), operand.examples)]


def _product(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """A product as sums: ``[*batch, rows, 1, terms]`` times ``[*batch, 1, columns, terms]``."""
    (out,) = equation.outvars
    dtype, rank = out.aval.dtype, out.aval.ndim
    arranged: list[Entries] = []
    working = dtype if np.issubdtype(dtype, np.integer) else np.dtype(np.float32)
    numbers = zip(equation.invars, operands, *equation.params["dimension_numbers"], strict=True)
    for variable, operand, summed, shared in numbers:
        _check_separate(equation, operand.examples, summed)
        free = other_axes(operand.table.ndim, summed, shared)
        start = rank - len(free) if arranged else len(shared)
        after = [*range(len(shared)), *range(start, start + len(free))]
        place = dict(zip((*shared, *free), after, strict=True))
        cast = partial(apply, convert(variable.aval.dtype, working))
        table = _of_each(cast, operand.table).transpose((*shared, *free, *summed))
        table = table.reshape((*table.shape[: len(after)], -1))
        table = np.expand_dims(table, other_axes(rank, after))
        arranged.append(Entries(table, _placed(operand.examples, place.__getitem__)))
    tables, examples = _together(arranged, rank + 1)
    shape = example_shape(out.aval.shape, examples)
    terms = tables[0].shape[-1]
    if not terms:
        raise CannotFuse("a product has no terms")
    left, right = (np.broadcast_to(x, (*shape, terms)) for x in tables)
    multiply, add = _named(apply, working, "mul", "add")
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
    array, *starts = operands
    cuts = []
    sizes = zip(equation.params["slice_sizes"], equation.invars[0].aval.shape, strict=True)
    for start, (size, full) in zip(starts, sizes, strict=True):
        index: Any = start.table.item().constant if size < full else 0
        if index is None:
            raise CannotFuse("dynamic_slice from an index that the program computes")
        first = min(max(int(index), 0), full - size)
        cuts.append(slice(first, first + size))
    return _rearranged(equation, [array], lambda _, arrays: [arrays[0][tuple(cuts)]])


def _by_numpy(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    return _rearranged(equation, operands, primitive(equation).numpy)


def _rearranged(equation: Any, operands: list[Entries], rule: Any) -> list[Entries]:
    """A move of entries: the examples are where the same move puts their numbers."""
    shapes = [x.aval.shape for x in equation.invars[: len(operands)]]
    tables = [x.table for x in operands]
    entries = {id(x): x for x in chain(*map(np.ravel, tables))}
    numbers = rule(equation, list(map(np.broadcast_to, map(_numbered, tables), shapes)))
    along: list[list[int | None]] = [[] for _ in numbers]
    for axes in zip(*(x.examples for x in operands), strict=True):
        sizes = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if axis is not None}
        places = rule(equation, list(map(_places, shapes, axes)))
        for examples, of_result in zip(along, places, strict=True):
            examples.append(_axis_of(equation, of_result, sizes))
    results = []
    for of_result, axes in zip(numbers, map(tuple, along), strict=True):
        narrowed = _narrowed(np.asarray(of_result), axes)
        table = table_of([entries[x] for x in narrowed.flat], narrowed.shape)
        results.append(Entries(table, axes))
    return results


def _places(shape: tuple[int, ...], axis: int | None) -> np.ndarray:
    """For each entry of an array the example that it is of, along one batch axis; -1 if of all."""
    places = -1 if axis is None else np.indices(shape, sparse=True)[axis]
    return np.broadcast_to(places, shape)


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
    "move": _by_numpy,
    "elementwise": _computed,
}
"""By the name of a primitive, or by its kind."""
