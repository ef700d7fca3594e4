"""Evaluate a program with slices moved before the operations that they slice.

A value that is computed elementwise and then sliced, like the gates of a recurrent cell, is sliced
first and computed afterwards. The arithmetic is the same, but XLA's CPU kernels for the slices of a
sum are scalar code, and those for the sum of slices are vector code. Slices that make up an array
are one split, whose transpose is a concatenation, not a sum of arrays padded with zeros.
"""

# jax 0.10.2, 2 cores, a GRU of 4 or 8 units, batch 8: 3 times faster for all steps at once where
# gates are cut from a sum, 1.5 for Jacobians where they are cut after the sigmoid, 1 in loops.
# Slices as one split: gradients of all steps at once take 0.65 of the time.
# Large products in small pieces, in loops: 0.6 to 1 of the time for 8 to 32 units.

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, filterfalse
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import lax

from depth.counts import size
from depth.jaxprs import Replacement, bind, entered, is_literal, needed
from depth.primitives import primitive

CUTS = frozenset({"slice", "split"})
OVERLAP = 2  # how often an entry is computed on average, for several slices, at most

Shape = tuple[int, ...]
Bounds = tuple[Shape, Shape, Shape]  # the starts, the ends and the strides of a slice, by axis


class Knife(NamedTuple):
    """Slices of an array of this shape.

    Attributes:
        shape: of the whole.
        bounds: of each slice.
        split: the sizes and the axis of `jax.lax.split`, if the slices are those; else None.
    """

    shape: Shape
    bounds: tuple[Bounds, ...]
    split: tuple[Shape, int] | None = None

    @classmethod
    def of(cls, equation: Any) -> Self:
        """The slices that an equation computes."""
        shape, params = equation.invars[0].aval.shape, equation.params
        if equation.primitive.name == "split":
            return cls.parting(shape, params["sizes"], params["axis"])
        starts, ends = map(tuple, (params["start_indices"], params["limit_indices"]))
        return cls(shape, ((starts, ends, tuple(params["strides"] or [1] * len(shape))),))

    @classmethod
    def parting(cls, shape: Shape, sizes: Sequence[int], axis: int) -> Self:
        """Those of `jax.lax.split`."""
        bounds = []
        for end, length in zip(accumulate(sizes), sizes, strict=True):
            starts, ends = [0] * len(shape), list(shape)
            starts[axis], ends[axis] = end - length, end
            bounds.append((tuple(starts), tuple(ends), (1,) * len(shape)))
        return cls(shape, tuple(bounds), (tuple(map(int, sizes)), axis))


@dataclasses.dataclass(frozen=True, eq=False)
class Uncut:
    """A result that is not computed as a whole: its slices are, each once."""

    equation: Any
    operands: list[Any]
    slices: dict[Knife, list[Any]] = dataclasses.field(default_factory=dict)


class Order(NamedTuple):
    """The equations from known variables to wanted ones, and how their results are sliced.

    Attributes:
        equations: in order.
        only_cut: the results of which only slices are computed.
        splits: of the variables that their slices make up, these, and the variables of each.
    """

    equations: list[Any]
    only_cut: set[Any]
    splits: dict[Any, tuple[Knife, list[list[Any]]]]

    @classmethod
    def of(
        cls,
        jaxpr: Any,
        known: Collection[Any],
        wanted: Sequence[Any],
        divides: Callable[[Any, Shape], bool] = lambda product, piece: False,
        cuts: bool = True,
    ) -> Self:
        """Computed once for a program that is evaluated often.

        ``cuts``: whether slices come first; else the program is evaluated as it is.
        ``divides``: whether a product is computed in pieces, if they have this shape.
        """
        equations = needed(jaxpr, known, wanted)
        if not cuts:
            return cls(equations, set(), {})
        only_cut = _only_cut(equations, wanted, divides).difference(known)
        return cls(equations, only_cut, _splits(equations))


def evaluate(
    jaxpr: Any,
    known: Mapping[Any, Any],
    wanted: Sequence[Any],
    replace: Replacement | None = None,
    order: Order | None = None,
) -> list[Any]:
    """The values of ``wanted``, given those of the variables in ``known``.

    See `depth.jaxprs.interpret`.

    ``replace(equation, operands)`` may compute the results of an equation itself, or return None.
    ``order``: None if it has not been computed yet.
    """
    equations, only_cut, splits = order or Order.of(jaxpr, known, wanted)
    values = dict(known)
    # Like `interpret`, with three functions fewer between a solve and the user's own step.
    for equation in equations:
        operands = [x.val if hasattr(x, "val") else values[x] for x in equation.invars]
        if equation.outvars and only_cut.issuperset(equation.outvars):
            results: list[Any] = [Uncut(equation, operands)]
        elif equation.primitive.name == "slice" and equation.invars[0] in splits:
            knife, variables = splits[equation.invars[0]]
            if equation.outvars[0] not in values:
                pieces = _cut(knife, operands[0], replace)
                for piece, same in zip(pieces, variables, strict=True):
                    for variable in same:
                        values.setdefault(variable, piece)
            continue
        elif operands and isinstance(operands[0], Uncut):
            results = _cut(Knife.of(equation), operands[0], replace)
        else:
            results = bind(equation, operands, replace)
        for variable, value in zip(equation.outvars, results, strict=True):
            values.setdefault(variable, value)
    return [x.val if hasattr(x, "val") else values[x] for x in wanted]


def apply(closed: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of a closed program, by `evaluate`."""
    program, known = entered(closed, operands)
    return evaluate(program, known, program.outvars, replace)


def _only_cut(
    equations: Sequence[Any], wanted: Sequence[Any], divides: Callable[[Any, Shape], bool]
) -> set[Any]:
    """The elementwise results of which only slices are used, or of what follows elementwise.

    And the products that this is true of, if all their slices are pieces to divide them into.
    Neither if slices overlap so much that they are more work than the whole.
    """
    whole = {atom for atom in wanted if not is_literal(atom)}
    found: set[Any] = set()
    pieces: dict[Any, set[Bounds]] = {}  # of what is only sliced
    for equation in reversed(equations):
        if equation.primitive.name in CUTS:
            pieces.setdefault(equation.invars[0], set()).update(Knife.of(equation).bounds)
            continue
        (result, *_) = equation.outvars or [None]
        is_cut = result not in whole and _is_cut(equation, pieces.get(result, set()), divides)
        if is_cut:
            found.add(result)
        for atom in filterfalse(is_literal, equation.invars):
            if is_cut and primitive(equation).in_place and atom.aval.shape == result.aval.shape:
                pieces.setdefault(atom, set()).update(pieces[result])
            else:
                whole.add(atom)
    return found


def _is_cut(equation: Any, pieces: set[Bounds], divides: Callable[[Any, Shape], bool]) -> bool:
    """Whether the slices of a result are computed, not the result as a whole."""
    shapes = [tuple(len(range(*axis)) for axis in zip(*bounds, strict=True)) for bounds in pieces]
    entries, of_whole = sum(map(math.prod, shapes)), sum(map(size, equation.outvars))
    if primitive(equation).in_place:
        return entries <= OVERLAP * of_whole
    is_product = equation.primitive.name == "dot_general" and entries <= of_whole
    return is_product and all(divides(equation, shape) for shape in shapes)


def _splits(equations: Sequence[Any]) -> dict[Any, tuple[Knife, list[list[Any]]]]:
    """The variables that their slices make up, one after another along an axis.

    The transpose of `jax.lax.split` is a concatenation, that of slices a sum of arrays with zeros.
    """
    slices: dict[Any, dict[Any, list[Any]]] = {}
    for equation in equations:
        if equation.primitive.name == "slice" and not is_literal(equation.invars[0]):
            parts = slices.setdefault(equation.invars[0], {})
            parts.setdefault(Knife.of(equation).bounds[0], []).append(equation.outvars[0])
    found = {}
    for whole, parts in slices.items():
        bounds, shape = sorted(parts), whole.aval.shape
        for axis in range(len(shape) if len(bounds) > 1 else 0):
            sizes = [ends[axis] - starts[axis] for starts, ends, _ in bounds]
            knife = Knife.parting(shape, sizes, axis)
            if sum(sizes) == shape[axis] and knife.bounds == tuple(bounds):
                found[whole] = knife, [parts[each] for each in bounds]
    return found


def _cut(knife: Knife, value: Any, replace: Replacement | None) -> list[Any]:
    """The slices of ``value``, a scalar or an array with broadcast axes of size 1."""
    if isinstance(value, Uncut):
        if knife not in value.slices:
            value.slices[knife] = _computed(knife, value, replace)
        return value.slices[knife]
    if jnp.ndim(value) != len(knife.shape):
        return [value] * len(knife.bounds)
    wide = [size != full for size, full in zip(jnp.shape(value), knife.shape, strict=True)]
    if knife.split is not None:
        sizes, axis = knife.split
        return [value] * len(sizes) if wide[axis] else list(lax.split(value, sizes, axis))
    ((starts, ends, strides),) = knife.bounds
    return [
        lax.slice(
            value,
            [0 if one else start for one, start in zip(wide, starts, strict=True)],
            [1 if one else end for one, end in zip(wide, ends, strict=True)],
            [1 if one else stride for one, stride in zip(wide, strides, strict=True)],
        )
    ]


def _computed(knife: Knife, value: Uncut, replace: Replacement | None) -> list[Any]:
    """The slices of a result that is not computed as a whole."""
    equation, operands = value.equation, value.operands
    if equation.primitive.name == "dot_general":
        parts = [_parts(equation, operands, *bounds) for bounds in knife.bounds]
    else:
        parts = list(map(list, zip(*(_cut(knife, x, replace) for x in operands), strict=True)))
    return [bind(equation, part, replace)[0] for part in parts]


def _parts(
    product: Any, operands: list[Any], starts: Shape, ends: Shape, strides: Shape
) -> list[Any]:
    """The slices of the operands of which a slice of the product is made."""
    (left_in, right_in), (left_batch, right_batch) = product.params["dimension_numbers"]
    left, right = operands
    axes = [[(0, i), (1, j)] for i, j in zip(left_batch, right_batch, strict=True)]
    axes += [[(0, i)] for i in range(left.ndim) if i not in (*left_in, *left_batch)]
    axes += [[(1, i)] for i in range(right.ndim) if i not in (*right_in, *right_batch)]
    found = [left, right]
    for start, end, stride, owners in zip(starts, ends, strides, axes, strict=True):
        for which, axis in owners:
            found[which] = lax.slice_in_dim(found[which], start, end, stride, axis)
    return found
