"""Programs with slices moved before the operations that they slice.

A value that is computed elementwise and then sliced, like the gates of a recurrent cell, is sliced
first and computed afterwards. The arithmetic is the same, but XLA's CPU kernels for the slices of a
sum are scalar code, and those for the sum of slices are vector code. Slices that make up an array
are one split, whose transpose is a concatenation, not a sum of arrays padded with zeros.

Where a program is evaluated, equations of a kind may be replaced, in calls, too (`replacing`).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, filterfalse, starmap
from typing import Any

from jax import lax
from jax.extend.core import Var

from deeppcr.programs.retrace import retraced, with_literals
from depth.counts import size
from depth.jaxprs import (
    Program,
    Replacement,
    bind,
    called,
    entered,
    interpret,
    is_literal,
    needed,
    rewritten,
)
from depth.primitives import primitive

CUTS = frozenset({"slice", "split"})
OVERLAP = 2  # how often an entry is computed on average, for several slices, at most

Shape = tuple[int, ...]
Bounds = tuple[tuple[int, int, int], ...]  # the start, the end and the stride of a slice, by axis


# jax 0.10.2, 2 cores, a GRU of 4 or 8 units, batch 8: 3 times faster for all steps at once where
# gates are cut from a sum, 1.5 for Jacobians where they are cut after the sigmoid; an LSTM of 32
# units, batch 8, in a loop: 1.5. Slices as one split: the gradient of Lorenz's equations by RK4,
# 1000 steps, takes 0.2 of the time.
def cut_first(jaxpr: Any, inputs: Collection[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations from ``inputs`` to ``outvars``, with slices first: for `interpret`."""
    equations = _with_splits(needed(jaxpr, inputs, outvars))
    only_cut = _only_cut(equations, outvars).difference(inputs)
    # By the id of the result, since literals have no hash: equations of which only slices are
    # computed, and the variables of the slices of these and of what they read.
    whole: dict[int, Any] = {}
    slices: dict[Any, Sequence[Any]] = {}
    new: list[Any] = []

    def add(atom: Any, cut: Any, results: Sequence[Any]) -> None:
        """Compute slices of a variable from slices of the operands."""
        equation = whole[id(atom)]
        parts = zip(*map(partial(pieces, cut=cut), equation.invars), strict=True)
        for part, result in zip(parts, results, strict=True):
            new.append(equation.replace(invars=list(part), outvars=[result]))

    def pieces(atom: Any, cut: Any) -> Sequence[Any]:
        """The slices of an operand, a scalar or an array with broadcast axes of size 1.

        ``cut``: the equation that has these slices of an array of the whole shape.
        """
        shape, of_whole = atom.aval.shape, cut.invars[0].aval.shape
        axis = cut.params.get("axis")  # of a split
        is_scalar = len(shape) != len(of_whole)
        if is_scalar or (axis is not None and shape[axis] != of_whole[axis]):
            return [atom] * len(cut.outvars)
        # Sizes along broadcast axes are read nowhere.
        results = [Var(y.aval.update(dtype=atom.aval.dtype)) for y in cut.outvars]
        if id(atom) not in whole:
            new.append(_sliced(atom, cut, results))
            return results
        key = id(atom), _bounds(cut)
        if key not in slices:
            slices[key] = results
            add(atom, cut, results)
        return slices[key]

    for equation in equations:
        first = equation.invars[0] if equation.primitive.name in CUTS else None
        if equation.outvars and only_cut.issuperset(equation.outvars):
            whole[id(equation.outvars[0])] = equation
        elif id(first) in whole:
            slices.setdefault((id(first), _bounds(equation)), equation.outvars)
            add(first, equation, equation.outvars)
        else:
            new.append(equation)
    return new


def evaluate(
    jaxpr: Any,
    environment: Mapping[Any, Any],
    outvars: Sequence[Any],
    replace: Replacement | None = None,
) -> list[Any]:
    """The values of ``outvars``, from those of the variables in ``environment``, slices first.

    See `depth.jaxprs.interpret`.

    ``replace(equation, operands)`` may compute the results of an equation itself, or return None.
    """
    equations = cut_first(jaxpr, environment, outvars)
    rule = partial(bind, replace=replace)
    return interpret(jaxpr, environment, outvars, rule, equations=equations)


def apply(closed: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of a closed program, as by `evaluate`."""
    program, environment = entered(closed, operands)
    results, rule = program.outvars, partial(bind, replace=replace)
    equations = cut_first(program, environment, results)
    return interpret(program, environment, results, rule, equations=equations)


def opening(rules: bool = False, checkpoints: bool = False) -> Replacement:
    """A ``replace`` for `evaluate`: it runs the programs of calls.

    Those of functions with derivative rules, and of `jax.checkpoint`, only if asked for.
    """

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        is_kept = not (rules or primitive(equation).inlines)
        is_kept |= "prevent_cse" in equation.params and not checkpoints
        inner = None if is_kept else called(equation)
        return None if inner is None else apply(inner, operands, replace)

    return replace


def opened(program: Program, with_checkpoints: bool = False) -> Program:
    """The program with its calls opened, and with slices first.

    Those of functions with derivative rules stay, and of `jax.checkpoint` unless asked for.
    """
    replace = opening(checkpoints=with_checkpoints)
    return with_literals(*retraced(program, partial(apply, program, replace=replace)))


def _only_cut(equations: Sequence[Any], outvars: Sequence[Any]) -> set[Any]:
    """The elementwise results of which only slices are used, or of what follows elementwise.

    Not if slices overlap so much that they are more work than the whole.
    """
    whole = set(filterfalse(is_literal, outvars))
    only_cut: set[Any] = set()
    slices = defaultdict[Any, set[Bounds]](set)  # of what is only sliced
    for equation in reversed(equations):
        if equation.primitive.name in CUTS and not is_literal(equation.invars[0]):
            slices[equation.invars[0]].update(_bounds(equation))
            continue
        (result, *_) = equation.outvars or [None]
        cuts = slices.get(result, set())
        is_cut = (
            result not in whole
            and primitive(equation).in_place
            and sum(map(_entries, cuts)) <= OVERLAP * sum(map(size, equation.outvars))
        )
        if is_cut:
            only_cut.add(result)
        for atom in filterfalse(is_literal, equation.invars):
            if is_cut and atom.aval.shape == result.aval.shape:
                slices[atom].update(cuts)
            else:
                whole.add(atom)
    return only_cut


def _with_splits(equations: Sequence[Any]) -> list[Any]:
    """The equations; slices that make up an array, one after another along an axis, as a split."""
    slices = defaultdict[Any, dict[Bounds, Any]](dict)
    for equation in equations:
        if equation.primitive.name == "slice" and not is_literal(equation.invars[0]):
            (bounds,) = _bounds(equation)
            slices[equation.invars[0]].setdefault(bounds, equation)
    by_slice: dict[int, Any] = {}  # the split in place of the first of its slices
    for whole, parts in slices.items():
        in_order, shape = tuple(sorted(parts)), whole.aval.shape
        for axis in range(len(shape) if len(in_order) > 1 else 0):
            sizes = tuple(limits[axis][1] - limits[axis][0] for limits in in_order)
            if sum(sizes) == shape[axis] and _of_split(shape, sizes, axis) == in_order:
                first = next(iter(parts.values()))
                results = [parts[limits].outvars[0] for limits in in_order]
                split = first.replace(primitive=lax.split_p, outvars=results)
                by_slice |= dict.fromkeys(map(id, parts.values()))
                by_slice[id(first)] = split.replace(params={"sizes": sizes, "axis": axis})
    return list(filter(None, [by_slice.get(id(each), each) for each in equations]))


def _bounds(equation: Any) -> tuple[Bounds, ...]:
    """Those of the slices that an equation computes."""
    shape, params = equation.invars[0].aval.shape, equation.params
    if equation.primitive.name == "split":
        return _of_split(shape, params["sizes"], params["axis"])
    strides = params["strides"] or [1] * len(shape)
    return (tuple(zip(params["start_indices"], params["limit_indices"], strides, strict=True)),)


def _of_split(shape: Shape, sizes: Sequence[int], axis: int) -> tuple[Bounds, ...]:
    """Those of `jax.lax.split`."""
    bounds = []
    for end, length in zip(accumulate(sizes), sizes, strict=True):
        limits = [(0, n, 1) for n in shape]
        limits[axis] = (end - length, end, 1)
        bounds.append(tuple(limits))
    return tuple(bounds)


def _sliced(atom: Any, cut: Any, results: Sequence[Any]) -> Any:
    """The equation of slices of an array, which may have broadcast axes of size 1."""
    shape, whole = atom.aval.shape, cut.invars[0].aval.shape
    params = cut.params
    if cut.primitive.name == "slice" and shape != whole:
        by_axis = zip(shape, whole, *_bounds(cut), strict=True)
        limits = [bounds if n == m else (0, 1, 1) for n, m, bounds in by_axis]
        starts, ends, strides = zip(*limits, strict=True)
        params = {"start_indices": starts, "limit_indices": ends, "strides": strides}
    return cut.replace(invars=[atom], outvars=list(results), params=params)


def _entries(bounds: Bounds) -> int:
    """The number of entries of a slice."""
    return math.prod(map(len, starmap(range, bounds)))


def replacing(is_of_kind: Callable[[Any], bool], write: Callable[..., Any]) -> Replacement:
    """For `evaluate`: a result ``write(equation, *operands)`` in place of each such equation."""

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        if is_of_kind(equation):
            return [write(equation, *operands)]
        return rewritten(equation, operands, partial(apply, replace=replace), is_of_kind)

    return replace
