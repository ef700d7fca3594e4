"""Evaluate a program with slices moved before the operations that they slice.

A value that is computed elementwise and then sliced, like the gates of a recurrent cell, is sliced
first and computed afterwards. The arithmetic is the same, but XLA's CPU kernels for the slices of a
sum are scalar code, and those for the sum of slices are vector code.
"""

# jax 0.10.2, 2 cores, a GRU of 4 or 8 units, batch 8: 3 times faster for all steps at once where
# gates are cut from a sum, 1.5 for Jacobians where they are cut after the sigmoid, 1 in loops.

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import lax

from depth.jaxprs import Replacement, bind, entered, is_literal, needed
from depth.primitives import primitive

CUTS = frozenset({"slice", "split"})


@dataclasses.dataclass(frozen=True, eq=False)
class Uncut:
    """A result that is not computed as a whole: its slices are, each once."""

    equation: Any
    operands: list[Any]
    slices: dict[Any, list[Any]] = dataclasses.field(default_factory=dict)


class Order(NamedTuple):
    """The equations from known variables to wanted ones, and those that are only sliced."""

    equations: list[Any]
    only_cut: set[Any]

    @classmethod
    def of(cls, jaxpr: Any, known: Collection[Any], wanted: Sequence[Any]) -> Self:
        """Computed once for a program that is evaluated often."""
        equations = needed(jaxpr, known, wanted)
        return cls(equations, _only_cut(equations, wanted).difference(known))


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
    equations, only_cut = order or Order.of(jaxpr, known, wanted)
    values = dict(known)
    # Like `interpret`, with two functions fewer between a solve and the user's own step.
    for equation in equations:
        operands = [atom.val if is_literal(atom) else values[atom] for atom in equation.invars]
        if equation.outvars and only_cut.issuperset(equation.outvars):
            results: list[Any] = [Uncut(equation, operands)]
        elif operands and isinstance(operands[0], Uncut):
            results = _cut(equation, operands[0], replace)
        else:
            results = bind(equation, operands, replace)
        for variable, value in zip(equation.outvars, results, strict=True):
            values.setdefault(variable, value)
    return [atom.val if is_literal(atom) else values[atom] for atom in wanted]


def apply(closed: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of a closed program, by `evaluate`."""
    program, known = entered(closed, operands)
    return evaluate(program, known, program.outvars, replace)


def _only_cut(equations: Sequence[Any], wanted: Sequence[Any]) -> set[Any]:
    """The elementwise results of which only slices are used, or of what follows elementwise."""
    whole = {atom for atom in wanted if not is_literal(atom)}
    found = set()
    for equation in reversed(equations):
        (result, *_) = equation.outvars or [None]
        is_cut = primitive(equation).in_place and result not in whole
        if is_cut:
            found.add(result)
        for atom in equation.invars if equation.primitive.name not in CUTS else ():
            if not is_literal(atom) and not (is_cut and atom.aval.shape == result.aval.shape):
                whole.add(atom)
    return found


def _cut(knife: Any, value: Any, replace: Replacement | None) -> list[Any]:
    """The slices of ``value``, a scalar or an array with broadcast axes of size 1."""
    if isinstance(value, Uncut):
        key = knife.primitive, str(knife.params)
        if key not in value.slices:
            pieces = zip(*(_cut(knife, x, replace) for x in value.operands), strict=True)
            value.slices[key] = [bind(value.equation, piece, replace)[0] for piece in pieces]
        return value.slices[key]
    shape = knife.invars[0].aval.shape
    if jnp.ndim(value) != len(shape):
        return [value] * len(knife.outvars)
    wide = [size != full for size, full in zip(jnp.shape(value), shape, strict=True)]
    params = knife.params
    if knife.primitive.name == "split":
        sizes, axis = params["sizes"], params["axis"]
        return [value] * len(sizes) if wide[axis] else list(lax.split(value, sizes, axis))
    strides = params["strides"] or [1] * len(shape)
    cuts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    slices = [slice(None) if one else slice(*cut) for one, cut in zip(wide, cuts, strict=True)]
    return [
        lax.slice(
            value,
            [s.start or 0 for s in slices],
            [1 if s.stop is None else s.stop for s in slices],
            [s.step or 1 for s in slices],
        )
    ]
