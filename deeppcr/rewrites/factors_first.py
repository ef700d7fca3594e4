"""Linear programs in which all factors of a value are multiplied first.

The transposed derivative of a step multiplies a cotangent by one factor after another: those of an
LSTM cell have eleven between states. ``(lam * a) * b`` is ``lam * (a * b)``, and ``a * b`` needs no
cotangent: it is computed for all steps at once, and a step reads fewer arrays. XLA compiles a loop
that reads less than a kilobyte in a trip to one function.

Values are equal up to rounding, unless the product of the factors alone overflows.
"""

# jax 0.10.2, 2 cores, the loop of an adjoint: a GRU of 4 to 16 units takes 0.5 to 0.7 of the time,
# an LSTM of 4 units 0.1.

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from depth.jaxprs import bind, called, entered, interpret, is_literal
from depth.primitives import primitive

Term = tuple[Array, Any]  # a value and its factor; None for 1


class Sum:
    """A value that depends on what the program is linear in: a sum of values times factors."""

    def __init__(self, *terms: Term) -> None:
        self.terms = terms
        self._value: Array | None = None

    @property
    def value(self) -> Array:
        """The sum, computed once."""
        if self._value is None:
            each = [x if factor is None else _product(x, factor) for x, factor in self.terms]
            self._value = sum(each[1:], each[0])
        return self._value

    @property
    def scaled(self) -> Term | None:
        """The one value and its factor; None if there are several, or no factor."""
        return self.terms[0] if len(self.terms) == 1 and self.terms[0][1] is not None else None


def factors_first(closed: Any, operands: Sequence[Any], moving: Collection[int]) -> list[Any]:
    """The results of a closed program that is linear in the operands at the indices ``moving``."""
    given = [Sum((x, None)) if i in moving else x for i, x in enumerate(operands)]
    return list(map(_value, _run(closed, given)))


def _run(closed: Any, operands: Sequence[Any]) -> list[Any]:
    program, known = entered(closed, operands)
    atoms = [*(x for each in program.eqns for x in each.invars), *program.outvars]
    uses = Counter(x for x in atoms if not is_literal(x))
    return interpret(program, known, program.outvars, partial(_results, uses))


def _results(uses: Counter[Any], equation: Any, operands: list[Any]) -> Sequence[Any]:
    if not any(isinstance(x, Sum) for x in operands):
        return bind(equation, operands)
    inner = called(equation) if primitive(equation).inlines else None
    if inner is not None and "prevent_cse" not in equation.params:  # of `jax.checkpoint` alone
        return _run(inner, operands)
    again = [not is_literal(x) and uses[x] > 1 for x in equation.invars]
    found = _sum(equation.primitive.name, operands, again)
    if found is not None:
        return [found]
    return [Sum((y, None)) for y in bind(equation, list(map(_value, operands)))]


def _sum(name: str, operands: list[Any], again: list[bool]) -> Sum | None:
    """The result with its factors; None if it is to be computed as it is.

    ``again``: whether operands have other uses, too. Then factors that differ in sign or scale
    alone would be two arrays, not one.
    """
    match name, operands:
        case "mul", [Sum() as x, fixed] | [fixed, Sum() as x]:
            if x.scaled is None or (any(again) and jnp.ndim(fixed) == 0):
                return Sum((x.value, fixed))
            value, factor = x.scaled
            return Sum((value, _wide(factor) * _wide(fixed)))
        case "div", [Sum(scaled=(value, factor)), fixed] if not again[0]:
            return Sum((value, _wide(factor) / _wide(fixed)))
        case "neg", [Sum(scaled=(value, factor))] if not again[0]:
            return Sum((value, -factor))
        case "add" | "add_any", [Sum() as x, Sum() as y] if not all(again):
            both = zip((x, y), again, strict=True)
            parts = [[(z.value, None)] if used and not z.scaled else z.terms for z, used in both]
            return _added(*parts)
    return None


def _added(left: Sequence[Term], right: Sequence[Term]) -> Sum:
    """A sum in which each value occurs once."""
    terms = list(left)
    for value, factor in right:
        same = [i for i, (other, _) in enumerate(terms) if other is value]
        if same:
            (i,) = same
            factors = (np.ones((), value.dtype) if x is None else x for x in (terms[i][1], factor))
            one, other = map(_wide, factors)
            terms[i] = value, one + other
        else:
            terms.append((value, factor))
    return Sum(*terms)


def _product(x: Array, factor: Array) -> Array:
    wide = factor * x.astype(factor.dtype)
    return wide.astype(x.dtype)


def _wide(x: Any) -> Array:
    """In float32 or better: factors are rounded once."""
    return jnp.asarray(x, np.result_type(np.float32, x.dtype))


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Sum) else x
