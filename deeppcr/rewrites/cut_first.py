"""Evaluating a program with cuts before what they cut.

What is computed elementwise and then cut into pieces, as the gates of a recurrent cell are, is cut
first and computed afterwards. It is the same arithmetic, but XLA's CPU kernels for the pieces of a
sum are scalar code, and those for the sum of pieces vector code.
"""

# jax 0.10.2, 2 cores, a GRU of 4 or 8 units, batch 8: 3 times faster for all steps at once where
# gates are cut from a sum, 1.5 for Jacobians where they are cut after the sigmoid, 1 in loops.

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from depth.jaxprs import Replacement, bind, entered, interpret, is_literal, needed
from depth.primitives import primitive

CUTS = frozenset({"slice", "split"})


@dataclasses.dataclass(frozen=True)
class Uncut:
    """A result that is not computed yet: its pieces will be."""

    equation: Any
    operands: list[Any]


def evaluate(
    jaxpr: Any, known: Mapping[Any, Any], wanted: Sequence[Any], replace: Replacement | None = None
) -> list[Any]:
    """The values of ``wanted``, given those of the variables in ``known``.

    See `depth.jaxprs.interpret`.

    ``replace(equation, operands)`` may compute the results of an equation in its own way, or return
    None.
    """
    only_cut = _only_cut(needed(jaxpr, known, wanted), wanted).difference(known)

    def rule(equation: Any, operands: list[Any]) -> Sequence[Any]:
        if only_cut.issuperset(equation.outvars) and equation.outvars:
            return [Uncut(equation, operands)]
        if operands and isinstance(operands[0], Uncut):
            made = operands[0]
            pieces = [_cut(equation, operand) for operand in made.operands]
            return [bind(made.equation, piece, replace)[0] for piece in zip(*pieces, strict=True)]
        return bind(equation, operands, replace)

    return interpret(jaxpr, known, wanted, rule)


def apply(closed: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of a closed program, by `evaluate`."""
    program, known = entered(closed, operands)
    return evaluate(program, known, program.outvars, replace)


def _only_cut(equations: Sequence[Any], wanted: Sequence[Any]) -> set[Any]:
    """What is computed in place, and of which only pieces are used."""
    whole = {atom for atom in wanted if not is_literal(atom)}
    for equation in equations:
        if equation.primitive.name not in CUTS:
            whole |= {atom for atom in equation.invars if not is_literal(atom)}
    return {
        equation.outvars[0]
        for equation in equations
        if primitive(equation).in_place and equation.outvars[0] not in whole
    }


def _cut(knife: Any, value: Any) -> list[Any]:
    """The pieces of ``value``, which is a scalar or may have axes of size 1 for longer ones."""
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
