"""Evaluate a program with slices moved before the operations that they slice.

A value that is computed elementwise and then sliced, like the gates of a recurrent cell, is sliced
first and computed afterwards. The arithmetic is the same, but XLA's CPU kernels for the slices of a
sum are scalar code, and those for the sum of slices are vector code. Slices that make up an array
are one split, whose transpose is a concatenation, not a sum of arrays padded with zeros.

Where it is evaluated, equations of a kind may be replaced, in calls, too (`replacing`).
"""

import dataclasses
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, filterfalse
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import lax

from deeppcr.programs.retrace import retraced, with_literals
from depth.counts import size
from depth.jaxprs import Program, Replacement, bind, called, entered, is_literal, needed, rewritten
from depth.primitives import primitive

CUTS = frozenset({"slice", "split"})
OVERLAP = 2  # how often an entry is computed on average, for several slices, at most

Shape = tuple[int, ...]
Bounds = tuple[Shape, Shape, Shape]  # the starts, the ends and the strides of a slice, by axis


# jax 0.10.2, 2 cores, a GRU of 4 or 8 units, batch 8: 3 times faster for all steps at once where
# gates are cut from a sum, 1.5 for Jacobians where they are cut after the sigmoid; an LSTM of 32
# units, batch 8, in a loop: 1.5. Slices as one split: the gradient of Lorenz's equations by RK4,
# 1000 steps, takes 0.2 of the time.
class Slices(NamedTuple):
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
            return cls.from_split(shape, params["sizes"], params["axis"])
        strides = tuple(params["strides"] or [1] * len(shape))
        bounds = tuple(params["start_indices"]), tuple(params["limit_indices"]), strides
        return cls(shape, (bounds,))

    @classmethod
    def from_split(cls, shape: Shape, sizes: Sequence[int], axis: int) -> Self:
        """Those of `jax.lax.split`."""
        bounds = []
        for end, length in zip(accumulate(sizes), sizes, strict=True):
            first, last = [0] * len(shape), list(shape)
            first[axis], last[axis] = end - length, end
            bounds.append((tuple(first), tuple(last), (1,) * len(shape)))
        return cls(shape, tuple(bounds), (tuple(map(int, sizes)), axis))

    def cut(self, value: Any) -> list[Any]:
        """The slices of ``value``, a scalar or an array with broadcast axes of size 1."""
        if isinstance(value, SlicedOnly):
            return value.cut(self)
        if jnp.ndim(value) != len(self.shape):
            return [value] * len(self.bounds)
        is_whole = list(map(operator.eq, jnp.shape(value), self.shape))
        if self.split is not None:
            sizes, axis = self.split
            return list(lax.split(value, sizes, axis)) if is_whole[axis] else [value] * len(sizes)
        by_axis = zip(is_whole, *self.bounds[0], strict=True)
        limits = [bounds if whole else (0, 1, 1) for whole, *bounds in by_axis]
        return [lax.slice(value, *zip(*limits, strict=True))]


@dataclasses.dataclass(frozen=True, eq=False)
class SlicedOnly:
    """An elementwise result that is not computed as a whole: its slices are, each once."""

    equation: Any
    operands: list[Any]
    replace: Replacement | None
    slices: dict[Slices, list[Any]] = dataclasses.field(default_factory=dict)

    def cut(self, slices: Slices) -> list[Any]:
        """Slices of the result, from slices of the operands."""
        if slices not in self.slices:
            parts = zip(*map(slices.cut, self.operands), strict=True)
            results = [bind(self.equation, list(part), self.replace) for part in parts]
            self.slices[slices] = [result for (result,) in results]
        return self.slices[slices]


class Order(NamedTuple):
    """The equations from some variables to others.

    Attributes:
        equations: in order.
        only_cut: the results of which only slices are computed.
        splits: the variables that their slices make up, and these.
    """

    equations: list[Any]
    only_cut: set[Any]
    splits: dict[Any, Slices]

    @classmethod
    def of(cls, jaxpr: Any, inputs: Collection[Any], outvars: Sequence[Any]) -> Self:
        """Computed once for a program that is evaluated often."""
        equations = needed(jaxpr, inputs, outvars)
        only_cut = _only_cut(equations, outvars).difference(inputs)
        return cls(equations, only_cut, _splits(equations))


def evaluate(
    jaxpr: Any,
    environment: Mapping[Any, Any],
    outvars: Sequence[Any],
    replace: Replacement | None = None,
    order: Order | None = None,
) -> list[Any]:
    """The values of ``outvars``, from those of the variables in ``environment``.

    See `depth.jaxprs.interpret`.

    ``replace(equation, operands)`` may compute the results of an equation itself, or return None.
    ``order``: None if it has not been computed yet.
    """
    order = order or Order.of(jaxpr, environment, outvars)
    values = dict(environment)
    pieces: dict[Any, list[Any]] = {}  # of the variables that are split
    # Like `interpret`, with two functions fewer between a solve and the user's own step.
    for equation in order.equations:
        operands = [x.val if hasattr(x, "val") else values[x] for x in equation.invars]
        if equation.outvars and order.only_cut.issuperset(equation.outvars):
            results: list[Any] = [SlicedOnly(equation, operands, replace)]
        elif equation.primitive.name == "slice" and equation.invars[0] in order.splits:
            whole = equation.invars[0]
            split = order.splits[whole]
            if whole not in pieces:
                pieces[whole] = split.cut(operands[0])
            (bounds,) = Slices.of(equation).bounds
            results = [pieces[whole][split.bounds.index(bounds)]]
        elif operands and isinstance(operands[0], SlicedOnly):
            results = Slices.of(equation).cut(operands[0])
        else:
            results = bind(equation, operands, replace)
        for variable, value in zip(equation.outvars, results, strict=True):
            values.setdefault(variable, value)
    return [x.val if hasattr(x, "val") else values[x] for x in outvars]


def apply(closed: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of a closed program, by `evaluate`."""
    program, environment = entered(closed, operands)
    return evaluate(program, environment, program.outvars, replace)


def opening(rules: bool = False, checkpoints: bool = False) -> Replacement:
    """A ``replace`` for `evaluate`: it runs the programs of calls.

    Those of functions with derivative rules, and of `jax.checkpoint`, only if asked for.
    """

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        is_kept = not (rules or primitive(equation).inlines)
        is_kept |= "prevent_cse" in equation.params and not checkpoints
        inner = None if is_kept else called(equation)
        if inner is None:
            return None
        program, environment = entered(inner, operands)
        return evaluate(program, environment, program.outvars, replace)

    return replace


def opened(program: Program, with_checkpoints: bool = False) -> Program:
    """The program with its calls opened, and with slices first.

    Those of functions with derivative rules stay, and of `jax.checkpoint` unless asked for.
    """
    replace = opening(checkpoints=with_checkpoints)
    return with_literals(
        *retraced(
            program,
            lambda values: evaluate(program, program.environment(values), program.outvars, replace),
        )
    )


def _only_cut(equations: Sequence[Any], outvars: Sequence[Any]) -> set[Any]:
    """The elementwise results of which only slices are used, or of what follows elementwise.

    Not if slices overlap so much that they are more work than the whole.
    """
    whole = set(filterfalse(is_literal, outvars))
    only_cut: set[Any] = set()
    slices = defaultdict[Any, set[Bounds]](set)  # of what is only sliced
    for equation in reversed(equations):
        if equation.primitive.name in CUTS:
            slices[equation.invars[0]].update(Slices.of(equation).bounds)
            continue
        (result, *_) = equation.outvars or [None]
        cuts = slices.get(result, set())
        is_cut = result not in whole and primitive(equation).in_place and _is_less(equation, cuts)
        if is_cut:
            only_cut.add(result)
        for atom in filterfalse(is_literal, equation.invars):
            if is_cut and atom.aval.shape == result.aval.shape:
                slices[atom].update(cuts)
            else:
                whole.add(atom)
    return only_cut


def _splits(equations: Sequence[Any]) -> dict[Any, Slices]:
    """The variables that their slices make up, one after another along an axis, and these.

    The transpose of `jax.lax.split` is a concatenation, that of slices a sum of arrays with zeros.
    """
    slices = defaultdict[Any, set[Bounds]](set)
    for equation in equations:
        if equation.primitive.name == "slice" and not is_literal(equation.invars[0]):
            slices[equation.invars[0]].update(Slices.of(equation).bounds)
    splits = {}
    for whole, parts in slices.items():
        bounds, shape = sorted(parts), whole.aval.shape
        for axis in range(len(shape) if len(bounds) > 1 else 0):
            sizes = [ends[axis] - starts[axis] for starts, ends, _ in bounds]
            split = Slices.from_split(shape, sizes, axis)
            if sum(sizes) == shape[axis] and split.bounds == tuple(bounds):
                splits[whole] = split
    return splits


def _is_less(equation: Any, cuts: Collection[Bounds]) -> bool:
    """Whether slices of a result are not much more work than the whole."""
    return sum(map(_entries, cuts)) <= OVERLAP * sum(map(size, equation.outvars))


def _entries(bounds: Bounds) -> int:
    """The number of entries of a slice."""
    return math.prod(len(range(*axis)) for axis in zip(*bounds, strict=True))


def replacing(is_of_kind: Callable[[Any], bool], write: Callable[..., Any]) -> Replacement:
    """For `evaluate`: a result ``write(equation, *operands)`` in place of each such equation."""

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        if is_of_kind(equation):
            return [write(equation, *operands)]
        return rewritten(equation, operands, partial(apply, replace=replace), is_of_kind)

    return replace
