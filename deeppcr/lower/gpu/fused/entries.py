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
from deeppcr.lower.gpu.fused.operations import CannotFuse, Code, Operation, convert, operation
from depth.jaxprs import Program, called, constants_of, interpret
from depth.primitives import primitive


class Entries(NamedTuple):
    """An array, entry by entry.

    Attributes:
        table: of objects, with the shape of the array, but 1 on the axes of the examples.
        examples: for each batch axis of the state its axis here, or None.
    """

    table: np.ndarray
    examples: tuple[int | None, ...]


def evaluate(program: Program, operands: Sequence[Entries], apply: Code) -> list[Entries]:
    """The results of a program.

    Args:
        operands: of ``program.invars``, then of ``program.constvars``.
        apply: evaluates a function of scalars on entries.

    Raises:
        CannotFuse: an operation has no counterpart in a kernel, or examples are not independent.
    """
    known = dict(zip([*program.invars, *program.constvars], operands, strict=True))
    batches = len(operands[0].examples)
    return _run(program, known, program.outvars, apply, batches)


def _run(program: Any, known: Any, wanted: Any, apply: Code, batches: int) -> list[Entries]:
    def literal(atom: Any) -> Entries:
        return constant(np.asarray(atom.val, atom.aval.dtype), batches)

    return interpret(program, known, wanted, partial(_results, apply, batches), literal)


def _called(closed: Any, operands: list[Entries], apply: Code, batches: int) -> list[Entries]:
    """The results of a program inside of another."""
    constants = [constant(np.asarray(value), batches) for value in constants_of(closed)]
    program = Program.of(closed)
    variables = [*program.constvars, *program.invars]
    known = dict(zip(variables, [*constants, *operands], strict=True))
    return _run(program, known, program.outvars, apply, batches)


def constant(value: np.ndarray, batches: int) -> Entries:
    """An array of numbers, which all examples share."""
    return Entries(table_of(list(value.ravel()), value.shape), (None,) * batches)


def table_of(entries: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """A table of entries, in the order of memory."""
    table = np.empty(len(entries), object)
    for k, entry in enumerate(entries):
        table[k] = entry
    return table.reshape(shape)


def _results(
    apply: Code, batches: int, equation: Any, operands: list[Entries]
) -> Sequence[Entries]:
    kind, name = primitive(equation).kind, equation.primitive.name
    for variable in equation.outvars:
        if variable.aval.dtype in (np.float64, np.complex64, np.complex128):
            raise CannotFuse(f"{name} computes in {variable.aval.dtype}")
    if kind in ("call", "derivative rule") and (inner := called(equation)) is not None:
        return _called(inner, operands, apply, batches)
    if name == "cond":
        return _branches(equation, operands, apply)
    if name == "dot_general":
        return [_product(equation, operands, apply)]
    if kind in ("reduction", "cumulative"):
        combine = partial(apply, _between_two(name, equation.outvars[0].aval.dtype))
        return [(_reduced if kind == "reduction" else _accumulated)(equation, operands[0], combine)]
    if name == "dynamic_slice":
        return _moved(equation, operands[:1], partial(_cut, operands[1:]))
    if kind == "move" and (rule := primitive(equation).numpy):
        return _moved(equation, operands, rule)
    if name == "iota" and (rule := primitive(equation).numpy):
        counts = rule(equation, [])[0].astype(equation.outvars[0].aval.dtype)
        return [constant(counts, batches)]
    if name == "integer_pow":
        power = partial(_power, apply, equation.outvars[0].aval.dtype, equation.params["y"])
        return [_elementwise(equation.outvars[0], operands, power)]
    if name == "clamp":
        clamp = partial(_clamp, apply, equation.outvars[0].aval.dtype)
        return [_elementwise(equation.outvars[0], operands, clamp)]
    if kind == "elementwise":
        return [_elementwise(equation.outvars[0], operands, partial(apply, _operation(equation)))]
    raise CannotFuse(f"{name} has no counterpart in a kernel")


# -- examples -------------------------------------------------------------------------------------


def _together(operands: Sequence[Entries], rank: int) -> tuple[list[np.ndarray], tuple[Any, ...]]:
    """Tables of this rank that fit each other, and the axes of the examples."""
    found = _merged([each.examples for each in operands if each.table.ndim == rank])
    tables = [x.table.reshape((1,) * (rank - x.table.ndim) + x.table.shape) for x in operands]
    return [_narrowed(table, found) for table in tables], found


def _narrowed(table: np.ndarray, axes: Sequence[int | None]) -> np.ndarray:
    """The table with size 1 on the axes of the examples.

    Raises:
        CannotFuse: it has different entries along them.
    """
    table = narrow(table, axes)
    if any(axis is not None and table.shape[axis] > 1 for axis in axes):
        raise CannotFuse("this array has a batch axis where none is allowed")
    return table


def _merged(all_examples: Sequence[tuple[int | None, ...]]) -> tuple[int | None, ...]:
    """The axes of the examples of a result, from those of its operands."""
    merged = []
    for axes in zip(*all_examples, strict=True):
        found = {axis for axis in axes if axis is not None}
        if len(found) > 1:
            raise CannotFuse("examples are combined with each other")
        merged.append(found.pop() if found else None)
    if len({*merged} - {None}) < len([axis for axis in merged if axis is not None]):
        raise CannotFuse("examples are combined with each other")
    return tuple(merged)


def narrow(table: np.ndarray, axes: Sequence[int | None]) -> np.ndarray:
    """The table with size 1 on those of the axes along which all its entries are the same."""
    numbers = table
    if table.dtype == object:
        numbers = np.fromiter(map(id, table.flat), np.int64, table.size).reshape(table.shape)
    for axis in axes:
        if axis is not None and (numbers == (first := numbers.take([0], axis))).all():
            numbers = first
            table = table.take([0], axis)
    return table


def _shape(variable: Any, examples: tuple[int | None, ...]) -> tuple[int, ...]:
    """The shape of a table."""
    return tuple(1 if axis in examples else n for axis, n in enumerate(variable.aval.shape))


def _own(equation: Any, examples: tuple[int | None, ...], axes: Sequence[int]) -> None:
    """Refuse an operation along ``axes``, if examples are on one of them."""
    if any(axis in axes for axis in examples if axis is not None):
        raise CannotFuse(f"{equation.primitive.name} combines examples with each other")


# -- rules ----------------------------------------------------------------------------------------


def _elementwise(
    out: Any, operands: list[Entries], call: Callable[[Sequence[Any]], Any]
) -> Entries:
    tables, examples = _together(operands, out.aval.ndim)
    shape = np.broadcast_shapes(*(table.shape for table in tables))
    rows = np.stack([np.broadcast_to(table, shape) for table in tables], -1)
    found = np.empty(shape, object)
    for index in np.ndindex(shape):
        found[index] = call(list(rows[index]))
    return Entries(np.broadcast_to(found, _shape(out, examples)), examples)


def _operation(equation: Any) -> Operation:
    """The operation of an elementwise equation."""
    count = len(equation.invars)
    operand = equation.invars[-1].aval.dtype
    return operation(equation.primitive.name, operand, equation.outvars[0].aval.dtype, count)


def _power(apply: Code, dtype: Any, power: int, entries: Sequence[Any]) -> Any:
    """An integer power of an entry as products, each of which is rounded."""
    multiply, divide = (operation(name, dtype, dtype) for name in ("mul", "div"))
    factors, (x,) = [], entries
    for k, bit in enumerate(reversed(f"{abs(power):b}")):
        x = apply(multiply, [x, x]) if k else x
        factors += [x] if bit == "1" else []
    one = np.ones((), dtype)[()]
    found = reduce(lambda x, y: apply(multiply, [x, y]), factors) if factors else one
    return apply(divide, [one, found]) if power < 0 else found


def _clamp(apply: Code, dtype: Any, entries: Sequence[Any]) -> Any:
    """An entry between two others; the upper one, if that is below the lower one."""
    least, x, most = entries
    above = apply(operation("max", dtype, dtype), [x, least])
    return apply(operation("min", dtype, dtype), [above, most])


def _between_two(name: str, dtype: Any) -> Operation:
    """The operation of two entries that a primitive like ``reduce_sum`` or ``cumsum`` repeats."""
    own = name.removeprefix("reduce_").removeprefix("cum")
    return operation({"sum": "add", "prod": "mul"}.get(own, own), dtype, dtype)


def _branches(equation: Any, operands: list[Entries], apply: Code) -> list[Entries]:
    """All branches are evaluated, as under `jax.vmap`."""
    which, *rest = operands
    programs = equation.params["branches"]
    results = [_called(inner, rest, apply, len(which.examples)) for inner in programs]
    found = []
    for out, *cases in zip(equation.outvars, *results, strict=True):
        select = operation("select_n", out.aval.dtype, out.aval.dtype, len(cases) + 1)
        found.append(_elementwise(out, [which, *cases], partial(apply, select)))
    return found


def _reduced(equation: Any, operand: Entries, call: Callable[[Sequence[Any]], Any]) -> Entries:
    """A reduction, as a tree."""
    axes = tuple(equation.params["axes"])
    _own(equation, operand.examples, axes)
    out = equation.outvars[0]
    kept = [axis for axis in range(operand.table.ndim) if axis not in axes]
    examples = tuple(None if axis is None else kept.index(axis) for axis in operand.examples)
    found = np.empty(_shape(out, examples), object)
    rows = np.moveaxis(operand.table, axes, range(-len(axes), 0)).reshape((*found.shape, -1))
    if not rows.shape[-1]:
        raise CannotFuse(f"{equation.primitive.name} reduces an axis of size 0")
    for index in np.ndindex(found.shape):
        found[index] = _tree(call, list(rows[index]))
    return Entries(found, examples)


def _tree(call: Callable[[Sequence[Any]], Any], entries: list[Any]) -> Any:
    while len(entries) > 1:
        pairs = [call(entries[k : k + 2]) for k in range(0, len(entries) - 1, 2)]
        entries = pairs + entries[2 * len(pairs) :]
    return entries[0]


def _accumulated(equation: Any, operand: Entries, call: Callable[[Sequence[Any]], Any]) -> Entries:
    axis, backwards = equation.params["axis"], equation.params["reverse"]
    _own(equation, operand.examples, [axis])
    rows = np.moveaxis(np.array(operand.table), axis, 0)
    order = range(len(rows))[::-1] if backwards else range(len(rows))
    for before, after in pairwise(order):
        for index in np.ndindex(rows.shape[1:]):
            rows[(after, *index)] = call([rows[(before, *index)], rows[(after, *index)]])
    return Entries(np.moveaxis(rows, 0, axis), operand.examples)


def _product(equation: Any, operands: list[Entries], apply: Code) -> Entries:
    """A product as sums: ``[*batch, rows, 1, terms]`` times ``[*batch, 1, columns, terms]``."""
    out = equation.outvars[0]
    arranged = list[Entries]()
    dtype = out.aval.dtype
    working = dtype if np.issubdtype(dtype, np.integer) else np.dtype(np.float32)
    casts = [convert(x.aval.dtype, working) for x in equation.invars]
    operands = [_cast(*each, apply) for each in zip(operands, casts, strict=True)]
    for each, own, shared in zip(operands, *equation.params["dimension_numbers"], strict=True):
        _own(equation, each.examples, own)
        free = [axis for axis in range(each.table.ndim) if axis not in (*own, *shared)]
        start = out.aval.ndim - len(free) if arranged else len(shared)
        after = [*range(len(shared)), *range(start, start + len(free))]
        place = dict(zip((*shared, *free), after, strict=True))
        table = each.table.transpose((*shared, *free, *own))
        table = table.reshape((*table.shape[: len(after)], -1))
        ones = [axis for axis in range(out.aval.ndim) if axis not in after]
        examples = tuple(None if axis is None else place[axis] for axis in each.examples)
        arranged.append(Entries(np.expand_dims(table, ones), examples))
    (left, right), examples = _together(arranged, out.aval.ndim + 1)
    shape = _shape(out, examples)
    terms = left.shape[-1]
    if not terms:
        raise CannotFuse("a product has no terms")
    left, right = (np.broadcast_to(x, (*shape, terms)) for x in (left, right))
    multiply, add = (operation(name, working, working) for name in ("mul", "add"))
    chains = min(-(-limits.SUMS * apply.threads // math.prod(shape)), terms)
    sums = np.empty((chains, *shape), object)
    for k in range(terms):  # of all sums, as their terms are neighbours in memory
        for index in np.ndindex(shape):
            to = (k % chains, *index)
            term = apply(multiply, [left[(*index, k)], right[(*index, k)]])
            sums[to] = term if k < chains else apply(add, [sums[to], term])
    found = np.empty(shape, object)
    for index in np.ndindex(shape):
        total = reduce(lambda x, y: apply(add, [x, y]), sums[(slice(None), *index)])
        found[index] = apply(convert(working, dtype), [total])
    return Entries(found, examples)


def _cast(operand: Entries, cast: Operation, apply: Code) -> Entries:
    """An operand of a product, which may be of another type than its factors."""
    if cast.text == "{0}":
        return operand
    entries = [apply(cast, [x]) for x in operand.table.flat]
    return operand._replace(table=table_of(entries, operand.table.shape))


# -- moves ----------------------------------------------------------------------------------------


def _cut(starts: list[Entries], equation: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """A dynamic slice from indices that are known."""
    cuts = []
    for start, size, full in zip(
        starts, equation.params["slice_sizes"], arrays[0].shape, strict=True
    ):
        if size < full and not isinstance(start.table[()], int | np.integer):
            raise CannotFuse("dynamic_slice from an index that the program computes")
        first = min(max(int(start.table[()]), 0), full - size) if size < full else 0
        cuts.append(slice(first, first + size))
    return [arrays[0][tuple(cuts)]]


def _moved(
    equation: Any, operands: list[Entries], rule: Callable[[Any, list[Any]], list[Any]]
) -> list[Entries]:
    """A move of entries: the examples are where the same move puts their numbers."""
    shapes = [x.aval.shape for x in equation.invars[: len(operands)]]
    distinct = {id(x): x for each in operands for x in each.table.flat}
    entries = table_of([*distinct.values()], (-1,))
    number = {x: k for k, x in enumerate(distinct)}
    full = []
    for each, shape in zip(operands, shapes, strict=True):
        coded = np.array([number[id(x)] for x in each.table.flat], int)
        full.append(np.broadcast_to(coded.reshape(each.table.shape), shape))
    tables = rule(equation, full)
    along: list[list[int | None]] = [[] for _ in tables]
    for axes in zip(*(each.examples for each in operands), strict=True):
        sizes = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if axis is not None}
        numbers = rule(equation, list(map(_numbers, shapes, axes)))
        for found, each in zip(along, numbers, strict=True):
            found.append(_axis_of(equation, each, sizes))
    codes = [_narrowed(table, axes) for table, axes in zip(tables, along, strict=True)]
    return [
        Entries(entries[each.ravel()].reshape(each.shape), tuple(axes))
        for each, axes in zip(codes, along, strict=True)
    ]


def _numbers(shape: tuple[int, ...], axis: int | None) -> np.ndarray:
    """For each entry of an array the example that it is of, along one batch axis; -1 if of all."""
    if axis is None:
        return np.full(shape, -1)
    return np.broadcast_to(np.expand_dims(np.arange(shape[axis]), _others(shape, axis)), shape)


def _axis_of(equation: Any, numbers: np.ndarray, sizes: set[int]) -> int | None:
    """The inverse of `_numbers`."""
    if (numbers < 0).all():
        return None
    for axis, size in enumerate(numbers.shape):
        own = _numbers(numbers.shape, axis)
        if size in sizes and ((numbers == own) | (numbers < 0)).all():
            return axis
    raise CannotFuse(f"{equation.primitive.name} combines examples with each other")


def _others(shape: tuple[int, ...], axis: int) -> list[int]:
    return [other for other in range(len(shape)) if other != axis]
