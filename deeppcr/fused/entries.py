"""A program evaluated entry by entry, for one of many examples.

A kernel that runs a whole recurrence keeps the state in registers, and a register has no axes. So
arrays are taken apart: an array is a table of its entries, and moving data, be it a slice, a
transpose or a concatenation, costs nothing. What is left are operations on single entries.

A batch of states is taken apart into examples, which is `jax.vmap` reversed: the batch axes are
followed through the program, and one example is evaluated. That is right only if the program treats
all examples alike and mixes none; otherwise it is refused.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from deeppcr.fused.operations import Apply, CannotFuse, Operation, convert, multiplied, operation
from depth.jaxprs import Program, called, interpret
from depth.primitives import primitive

CHAINS = 4  # sums that a sum of products is split into, so that each step waits for fewer others


class Entries(NamedTuple):
    """An array, entry by entry.

    Attributes:
        table: of objects, with the shape of the array, but 1 on the axes of the examples.
        examples: for each batch axis of the state its axis here, or None.
    """

    table: np.ndarray
    examples: tuple[int | None, ...]


def evaluate(program: Program, operands: Sequence[Entries], apply: Apply) -> list[Entries]:
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


def _run(program: Any, known: Any, wanted: Any, apply: Apply, batches: int) -> list[Entries]:
    def literal(atom: Any) -> Entries:
        return _constant(np.asarray(atom.val, atom.aval.dtype), batches)

    return interpret(program, known, wanted, partial(_results, apply, batches), literal)


def _called(closed: Any, operands: list[Entries], apply: Apply, batches: int) -> list[Entries]:
    """The results of a program inside of another."""
    constants = [_constant(np.asarray(value), batches) for value in getattr(closed, "consts", ())]
    program = Program.of(closed)
    variables = [*program.constvars, *program.invars]
    known = dict(zip(variables, [*constants, *operands], strict=True))
    return _run(program, known, program.outvars, apply, batches)


def _constant(value: np.ndarray, batches: int) -> Entries:
    return Entries(table_of(list(value.ravel()), value.shape), (None,) * batches)


def table_of(entries: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """A table of entries, in the order of memory."""
    table = np.empty(len(entries), object)
    for k, entry in enumerate(entries):
        table[k] = entry
    return table.reshape(shape)


def _results(
    apply: Apply, batches: int, equation: Any, operands: list[Entries]
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
    if kind == "reduction" and (function := REDUCTIONS.get(name)):
        return [_reduced(equation, operands[0], partial(apply, function))]
    if kind == "cumulative" and (function := CUMULATIVE.get(name)):
        return [_accumulated(equation, operands[0], partial(apply, function))]
    if name == "dynamic_slice":
        return [_cut(equation, operands)]
    if kind == "move" and (rule := primitive(equation).numpy):
        return _moved(equation, operands, rule)
    if name == "iota" and (rule := primitive(equation).numpy):
        counts = rule(equation, [])[0].astype(equation.outvars[0].aval.dtype)
        return [_constant(counts, batches)]
    if kind == "elementwise" and (each := operation(equation)) is not None:
        return [_elementwise(equation, operands, partial(apply, each))]
    raise CannotFuse(f"{name} has no counterpart in a kernel")


# -- examples -------------------------------------------------------------------------------------


def _together(operands: Sequence[Entries], rank: int) -> tuple[list[np.ndarray], tuple[Any, ...]]:
    """Tables of this rank that fit each other, and the axes of the examples."""
    wide = [each for each in operands if each.table.ndim == rank]
    found = _merged([each.examples for each in wide])
    tables = []
    for each in operands:
        table = each.table.reshape((1,) * rank) if each.table.ndim < rank else each.table
        table = narrow(table, found)
        if any(axis is not None and table.shape[axis] > 1 for axis in found):
            raise CannotFuse("an array with an entry for each example is shared by all of them")
        tables.append(table)
    return tables, found


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
    for axis in axes:
        if axis is not None and table.shape[axis] > 1:
            first = table.take([0], axis)
            pairs = zip(np.broadcast_to(first, table.shape).flat, table.flat, strict=True)
            table = first if all(one is other for one, other in pairs) else table
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
    equation: Any, operands: list[Entries], call: Callable[[Sequence[Any]], Any]
) -> Entries:
    out = equation.outvars[0]
    tables, examples = _together(operands, out.aval.ndim)
    each = np.broadcast(*tables) if len(tables) > 1 else None
    found = np.empty(tables[0].shape if each is None else each.shape, object)
    tables = [np.broadcast_to(table, found.shape) for table in tables]
    for index in np.ndindex(found.shape):
        found[index] = call([table[index] for table in tables])
    return Entries(np.broadcast_to(found, _shape(out, examples)), examples)


def _branches(equation: Any, operands: list[Entries], apply: Apply) -> list[Entries]:
    """All branches are evaluated, as under `jax.vmap`."""
    which, *rest = operands
    batches = len(which.examples)
    results = [_called(inner, rest, apply, batches) for inner in equation.params["branches"]]
    selects = partial(apply, Operation(lax.select_n))
    if len(results) == 2:
        second = partial(apply, Operation(lambda index: index != jnp.zeros((), index.dtype)))
        which = _elementwise(SimpleNamespace(outvars=equation.invars[:1]), [which], second)
    outs = zip(equation.outvars, *results, strict=True)
    return [
        _elementwise(SimpleNamespace(outvars=[out]), [which, *cases], selects)
        for out, *cases in outs
    ]


REDUCTIONS: dict[str, Operation] = {
    "reduce_sum": Operation(lax.add),
    "reduce_prod": Operation(lax.mul),
    "reduce_max": Operation(lax.max),
    "reduce_min": Operation(lax.min),
    "reduce_and": Operation(lax.bitwise_and),
    "reduce_or": Operation(lax.bitwise_or),
}
CUMULATIVE: dict[str, Operation] = {
    "cumsum": Operation(lax.add),
    "cumprod": Operation(lax.mul),
    "cummax": Operation(lax.max),
    "cummin": Operation(lax.min),
}


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


def _product(equation: Any, operands: list[Entries], apply: Apply) -> Entries:
    """A product as sums: ``[*batch, rows, terms]`` times ``[*batch, terms, columns]``."""
    contracted, batch = equation.params["dimension_numbers"]
    tables, groups = [], []
    positions: list[tuple[int | None, ...]] = []
    for each, own, shared in zip(operands, contracted, batch, strict=True):
        _own(equation, each.examples, own)
        free = [axis for axis in range(each.table.ndim) if axis not in (*own, *shared)]
        groups.append((list(shared), free, list(own)))
        tables.append(each.table)
        start = len(shared) + (len(groups[0][1]) if positions else 0)
        after = {axis: k for k, axis in enumerate(shared)}
        after |= {axis: start + k for k, axis in enumerate(free)}
        positions.append(tuple(None if axis is None else after[axis] for axis in each.examples))
    examples = _merged(positions)
    left, right = (_factor(table, k, groups, examples) for k, table in enumerate(tables))
    out = equation.outvars[0]
    found = np.empty(_shape(out, examples), object)
    total = partial(_sum_of_products, apply, out.aval.dtype)
    rank, rows = len(batch[0]), len(groups[0][1])
    for index in np.ndindex(found.shape):
        shared = index[:rank]
        a = left[(*shared, *index[rank : rank + rows])]
        b = right[(*shared, *index[rank + rows :])]
        found[index] = total(a.ravel(), b.ravel())
    return Entries(found, examples)


def _factor(table: np.ndarray, side: int, groups: Any, examples: Any) -> np.ndarray:
    """A factor of a product, ``[*batch, *free, *contracted]``."""
    shared, free, own = groups[side]
    table = table.transpose((*shared, *free, *own))
    for axis in range(len(shared)):
        if axis in examples and table.shape[axis] > 1:
            raise CannotFuse("an array with an entry for each example is shared by all of them")
    return table


def _sum_of_products(apply: Apply, dtype: Any, a: Sequence[Any], b: Sequence[Any]) -> Any:
    """``sum_k a_k b_k`` in at most `CHAINS` chains of multiplications with addition."""
    if not len(a):
        raise CannotFuse("a product has no terms")
    multiply, add = multiplied(dtype), Operation(lax.add)
    chains: list[Any] = [None] * min(CHAINS, len(a))
    for k, pair in enumerate(zip(a, b, strict=True)):
        term = apply(multiply, pair)
        last = chains[k % CHAINS]
        chains[k % CHAINS] = term if last is None else apply(add, [last, term])
    total = reduce(lambda x, y: apply(add, [x, y]), chains)
    return apply(convert(dtype), [total])


def _cut(equation: Any, operands: list[Entries]) -> Entries:
    """A dynamic slice from indices that are known."""
    operand, *starts = operands
    sizes, shape = equation.params["slice_sizes"], equation.invars[0].aval.shape
    cuts: list[Any] = []
    for axis, (start, size, full) in enumerate(zip(starts, sizes, shape, strict=True)):
        if size == full:
            cuts.append(slice(None))
            continue
        if not isinstance(start.table[()], int | np.integer):
            raise CannotFuse("dynamic_slice from an index that the program computes")
        _own(equation, operand.examples, [axis])
        first = min(max(int(start.table[()]), 0), full - size)
        cuts.append(slice(first, first + size))
    return Entries(operand.table[(*cuts, ...)], operand.examples)


# -- moves ----------------------------------------------------------------------------------------


def _moved(
    equation: Any, operands: list[Entries], rule: Callable[[Any, list[Any]], list[Any]]
) -> list[Entries]:
    """A move of entries, whose parameters are those for one example."""
    name, shape = equation.primitive.name, equation.invars[0].aval.shape
    if len(operands) > 1:
        rank = len(shape)
        tables, examples = _together([each for each in operands if each.table.ndim == rank], rank)
        full = [each.aval.shape for each in equation.invars if each.aval.ndim == rank]
        wide = [
            np.broadcast_to(table, [1 if k in examples else n for k, n in enumerate(of)])
            for table, of in zip(tables, full, strict=True)
        ]
        tables = [*wide, *(each.table for each in operands if each.table.ndim < rank)]
    else:
        tables, examples = [operands[0].table], operands[0].examples
    params, after = _params(equation, name, shape, examples)
    outs = [
        SimpleNamespace(aval=SimpleNamespace(shape=_shape(out, after))) for out in equation.outvars
    ]
    local = SimpleNamespace(
        params=equation.params | params, outvars=outs, primitive=equation.primitive
    )
    return [Entries(np.asarray(table, object), after) for table in rule(local, tables)]


def _params(
    equation: Any, name: str, shape: tuple[int, ...], examples: tuple[int | None, ...]
) -> tuple[dict[str, Any], tuple[int | None, ...]]:
    """The parameters of a move for one example, and the axes of the examples after it."""
    params, axes = equation.params, [axis for axis in examples if axis is not None]
    same: tuple[dict[str, Any], tuple[int | None, ...]] = ({}, examples)

    def to(moved: Callable[[int], int]) -> tuple[int | None, ...]:
        return tuple(None if axis is None else moved(axis) for axis in examples)

    if not axes or equation.primitive.name in ("copy", "stop_gradient", "name"):
        return same
    if name == "broadcast_in_dim":
        after = to(lambda axis: params["broadcast_dimensions"][axis])
        return {"shape": _shape(equation.outvars[0], after)}, after
    if name == "reshape":
        after = to(partial(_reshaped, equation, shape, tuple(params["new_sizes"])))
        return {"new_sizes": _shape(equation.outvars[0], after)}, after
    if name == "transpose":
        return {}, to(list(params["permutation"]).index)
    if name == "squeeze":
        _own(equation, examples, params["dimensions"])
        return {}, to(lambda axis: axis - sum(each < axis for each in params["dimensions"]))
    if name == "slice":
        strides = params["strides"] or (1,) * len(shape)
        cuts = zip(params["start_indices"], params["limit_indices"], strides, shape, strict=True)
        changed = [k for k, (start, end, by, n) in enumerate(cuts) if (start, end, by) != (0, n, 1)]
        _own(equation, examples, changed)
        limits = [1 if k in axes else end for k, end in enumerate(params["limit_indices"])]
        return {"limit_indices": tuple(limits)}, examples
    if name == "pad":
        changed = [k for k, edges in enumerate(params["padding_config"]) if edges != (0, 0, 0)]
        _own(equation, examples, changed)
        return same
    if name in ("concatenate", "split", "rev"):
        along = params.get("dimension", params.get("axis"))
        _own(equation, examples, params["dimensions"] if name == "rev" else [along])
        return same
    if name == "stack":
        return {}, to(lambda axis: axis + (axis >= params["axis"]))
    if name == "unstack":
        _own(equation, examples, [params["axis"]])
        return {}, to(lambda axis: axis - (axis > params["axis"]))
    raise CannotFuse(f"{name} has no counterpart in a kernel for one example of a batch")


def _reshaped(equation: Any, shape: tuple[int, ...], new: tuple[int, ...], axis: int) -> int:
    """Where an axis is after a reshape that leaves it alone."""
    before = int(np.prod(shape[:axis], dtype=int))
    for k, size in enumerate(new):
        if size == shape[axis] and int(np.prod(new[:k], dtype=int)) == before:
            return k
    _own(equation, (axis,), [axis])
    raise AssertionError
