"""A program evaluated entry by entry, for one of many examples.

A kernel that runs a whole recurrence keeps the state in registers, and a register has no axes. So
arrays are taken apart: an array is a table of its entries, and moving data, be it a slice, a
transpose or a concatenation, costs nothing. What is left are operations on single entries.

A batch of states is taken apart into examples, which is `jax.vmap` reversed: the batch axes are
followed through the program, and one example is evaluated. That is right only if the program treats
all examples alike and mixes none; otherwise it is refused.

Only moves and elementwise operations are evaluated so. Whatever else a kernel has, such as products
and reductions, is written as a program of these.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate, chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import jaxpr_as_fun

from deeppcr.arrays import Leaves, abstract_avals
from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import CannotFuse, Code, operation
from deeppcr.lower.products import sizes_along
from depth.counts import other_axes
from depth.jaxprs import Program, called, constants_of, interpret
from depth.primitives import primitive

Axes = tuple[int | None, ...]  # of the examples: for each batch axis of the state, or None


class Entries(NamedTuple):
    """An array, entry by entry.

    Attributes:
        table: the indices of values of `Code`, with the shape of the array, but 1 on the axes of
            the examples.
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


def table_of(entries: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
    """A table of entries, in the order of memory."""
    return np.array(entries, np.int64).reshape(shape)


def _results(apply: Code, equation: Any, operands: list[Entries]) -> Sequence[Entries]:
    kind, name = primitive(equation).kind, equation.primitive.name
    for variable in equation.outvars:
        if variable.aval.dtype in (np.float64, np.complex64, np.complex128):
            raise CannotFuse(f"{name} computes in {variable.aval.dtype}")
    if (inner := called(equation)) is not None:
        return evaluate(inner, operands, apply)
    if write := WRITTEN.get(name):
        return _by_program(partial(write, **equation.params), apply, equation, operands)
    rule = RULES.get(name) or RULES.get(kind)
    if rule is None or (rule is _by_numpy and not primitive(equation).numpy):
        raise CannotFuse(f"{name} has no counterpart in a kernel")
    return rule(apply, equation, operands)


# -- examples -------------------------------------------------------------------------------------


class _Combined(CannotFuse):
    """A step that combines examples with each other."""


def _together(operands: Sequence[Entries], rank: int) -> tuple[list[np.ndarray], Axes]:
    """Tables of this rank that fit each other, and the axes of the examples."""
    axes: Axes = ()
    for places in zip(*(x.examples for x in operands if x.table.ndim == rank), strict=True):
        different = {*places} - {None}
        if len(different) > 1 or not different.isdisjoint(axes):
            raise _Combined("examples are combined with each other")
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
    for axis in axes:
        first = table if axis is None else table.take([0], axis)
        if (table == first).all():
            table = first
    return table


def example_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of a table of one example."""
    return tuple(1 if axis in axes else n for axis, n in enumerate(shape))


# -- elementwise ----------------------------------------------------------------------------------


def _computed(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """An elementwise operation."""
    (out,) = equation.outvars
    dtype = equation.invars[-1].aval.dtype
    function = operation(equation.primitive.name, dtype, out.aval.dtype, len(equation.invars))
    tables, examples = _together(operands, out.aval.ndim)
    rows = np.stack(np.broadcast_arrays(*tables), -1)
    shape = rows.shape[:-1]
    table = table_of([apply(function, rows[k].tolist()) for k in np.ndindex(shape)], shape)
    table = np.broadcast_to(table, example_shape(out.aval.shape, examples))
    return [Entries(table, examples)]


def _counted(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """An ``iota``."""
    rule: Any = primitive(equation).numpy
    (counts,) = rule(equation, operands)
    return [_constant(counts.astype(equation.outvars[0].aval.dtype), apply)]


# -- moves ----------------------------------------------------------------------------------------


def _cut(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """A dynamic slice from indices that are known."""
    array, *starts = operands
    cuts = []
    sizes = zip(equation.params["slice_sizes"], equation.invars[0].aval.shape, strict=True)
    for start, (size, full) in zip(starts, sizes, strict=True):
        index: Any = apply.values[start.table.item()].constant if size < full else 0
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
    tables = [np.broadcast_to(x.table, shape) for x, shape in zip(operands, shapes, strict=True)]
    rearranged = rule(equation, tables)
    along: list[list[int | None]] = [[] for _ in rearranged]
    for axes in zip(*(x.examples for x in operands), strict=True):
        sizes = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if axis is not None}
        places = rule(equation, list(map(_places, shapes, axes)))
        for examples, of_result in zip(along, places, strict=True):
            examples.append(_axis_of(equation, of_result, sizes))
    results = zip(rearranged, map(tuple, along), strict=True)
    return [Entries(_narrowed(np.asarray(table), axes), axes) for table, axes in results]


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
    raise _Combined(f"{equation.primitive.name} combines examples with each other")


# -- what is written as a program of these --------------------------------------------------------


def _by_program(
    write: Callable[..., Any], apply: Code, equation: Any, operands: list[Entries]
) -> list[Entries]:
    closed = jax.make_jaxpr(write)(*abstract_avals(equation.invars))
    try:
        return evaluate(closed, operands, apply)
    except _Combined:
        name = equation.primitive.name
        raise _Combined(f"{name} combines examples with each other") from None


def _clamped(least: Array, x: Array, most: Array) -> Array:
    """``x`` between two others; the upper one, where that is below the lower one."""
    at_least = lax.max(x, jnp.broadcast_to(least, x.shape))
    return lax.min(at_least, jnp.broadcast_to(most, x.shape))


def _power(x: Array, y: int) -> Array:
    """Integer powers as products, each of which is rounded."""
    one, factors = lax.full_like(x, 1), []
    for bit in reversed(f"{abs(y):b}"):
        if bit == "1":
            factors.append(x)
        x = lax.mul(x, x)
    product = reduce(lax.mul, factors) if factors else one
    return lax.div(one, product) if y < 0 else product


def _branches(index: Array, *operands: Array, branches: Sequence[Any], **_: Any) -> Leaves:
    """All branches are evaluated, as under `jax.vmap`."""
    results = [jaxpr_as_fun(branch)(*operands) for branch in branches]
    return [lax.select_n(index, *cases) for cases in zip(*results, strict=True)]


def _reduced(between: Callable[..., Array], x: Array, axes: Sequence[int], **_: Any) -> Array:
    """A reduction, as a tree."""
    rest = other_axes(x.ndim, axes)
    x = _flattened(x, rest, axes)
    if not x.shape[-1]:
        raise CannotFuse("a reduction of an axis of size 0")
    while (count := x.shape[-1]) > 1:
        end = count // 2 * 2
        first, second = (lax.slice_in_dim(x, k, end, 2, len(rest)) for k in (0, 1))
        last = lax.slice_in_dim(x, end, count, axis=len(rest))
        x = lax.concatenate([between(first, second), last], len(rest))
    return lax.squeeze(x, [len(rest)])


def _accumulated(between: Callable[..., Array], x: Array, axis: int, reverse: bool) -> Array:
    order = -1 if reverse else 1
    rows = lax.split(x, [1] * x.shape[axis], axis)[::order]
    return lax.concatenate(list(accumulate(rows, between))[::order], axis)


def _flattened(x: Array, *groups: Sequence[int]) -> Array:
    """An array with these axes in this order, those of the last group as one."""
    x = lax.transpose(x, list(chain(*groups)))
    end = x.ndim - len(groups[-1])
    return lax.reshape(x, (*x.shape[:end], math.prod(x.shape[end:])))


def _product(chains: int, dtype: Any, dimension_numbers: Any, left: Array, right: Array) -> Array:
    """A product as sums: ``[*batch, rows, 1, terms]`` times ``[*batch, 1, columns, terms]``."""
    (left_in, right_in), (left_batch, right_batch) = dimension_numbers
    left_free = other_axes(left.ndim, left_in, left_batch)
    right_free = other_axes(right.ndim, right_in, right_batch)
    working = dtype if jnp.issubdtype(dtype, jnp.integer) else np.float32
    left, right = lax.convert_element_type(left, working), lax.convert_element_type(right, working)
    left = _flattened(left, left_batch, left_free, left_in)
    right = _flattened(right, right_batch, right_free, right_in)
    columns = left.ndim - 1 + np.arange(len(right_free))
    left = lax.expand_dims(left, columns.tolist())
    rows = len(left_batch) + np.arange(len(left_free))
    right = lax.expand_dims(right, rows.tolist())
    terms = left.shape[-1]
    if not terms:
        raise CannotFuse("a product has no terms")
    sums: list[Array] = []
    factors = (lax.split(x, [1] * terms, x.ndim - 1) for x in (left, right))
    for k, (a, b) in enumerate(zip(*factors, strict=True)):
        if k < chains:
            sums.append(lax.mul(a, b))
        else:  # of all sums, as their terms are neighbours in memory
            sums[k % chains] = lax.add(sums[k % chains], lax.mul(a, b))
    total = lax.convert_element_type(reduce(lax.add, sums), dtype)
    return lax.squeeze(total, [total.ndim - 1])


def _chained(apply: Code, equation: Any, operands: list[Entries]) -> list[Entries]:
    """A product, by as many sums as keep all threads of an example busy."""
    numbers, (out,) = equation.params["dimension_numbers"], equation.outvars
    outputs = 1
    for x, summed, shared in zip(operands, *numbers, strict=True):
        free = other_axes(x.table.ndim, summed, shared)
        outputs *= math.prod(sizes_along(x.table, free))
    batches = (sizes_along(x.table, shared) for x, shared in zip(operands, numbers[1], strict=True))
    outputs *= math.prod(map(min, *batches))
    chains = -(-limits.SUMS * apply.threads // outputs)
    write = partial(_product, chains, out.aval.dtype, numbers)
    return _by_program(write, apply, equation, operands)


WRITTEN: dict[str, Callable[..., Any]] = {
    "clamp": _clamped,
    "cond": _branches,
    "integer_pow": _power,
    "reduce_sum": partial(_reduced, lax.add),
    "reduce_prod": partial(_reduced, lax.mul),
    "reduce_max": partial(_reduced, lax.max),
    "reduce_min": partial(_reduced, lax.min),
    "reduce_and": partial(_reduced, lax.bitwise_and),
    "reduce_or": partial(_reduced, lax.bitwise_or),
    "reduce_xor": partial(_reduced, lax.bitwise_xor),
    "cumsum": partial(_accumulated, lax.add),
    "cumprod": partial(_accumulated, lax.mul),
    "cummax": partial(_accumulated, lax.max),
    "cummin": partial(_accumulated, lax.min),
}

RULES: dict[str, Callable[[Code, Any, list[Entries]], list[Entries]]] = {
    "dot_general": _chained,
    "dynamic_slice": _cut,
    "iota": _counted,
    "move": _by_numpy,
    "elementwise": _computed,
}
"""By the name of a primitive, or by its kind."""
