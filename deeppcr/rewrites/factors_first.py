"""Linear programs in which all factors of a value are multiplied first.

The transposed derivative of a step multiplies a cotangent by one factor after another: those of an
LSTM cell have eleven between states. ``(lam * a) * b`` is ``lam * (a * b)``, and ``a * b`` needs no
cotangent: it is computed for all steps at once, and a step reads fewer arrays. XLA compiles a loop
that reads less than a kilobyte in a trip to one function.

Values are equal up to rounding, unless a product of factors overflows, and that with the cotangent
would not. A cotangent of 0 stays 0: that of a branch that is not taken.
"""

# jax 0.10.2, 2 cores, the loop of an adjoint: a GRU of 4 to 16 units takes 0.5 to 0.7 of the time,
# an LSTM of 4 units 0.1.

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from depth.jaxprs import bind, called, entered, interpret, is_literal
from depth.primitives import primitive


class Term(NamedTuple):
    """A value times a factor.

    Attributes:
        value: of one equation, or an operand of the program.
        factor: None for 1.
        is_merged: whether several factors have become one, which may have overflowed.
    """

    value: Array
    factor: Any = None
    is_merged: bool = False

    @property
    def product(self) -> Array:
        """The product; 0 for a value of 0, as if the factors were multiplied one by one."""
        if self.factor is None:
            return self.value
        wide = (self.factor * self.value.astype(self.factor.dtype)).astype(self.value.dtype)
        return jnp.where(self.value == 0, jnp.zeros_like(wide), wide) if self.is_merged else wide


class Sum:
    """A value that depends on what the program is linear in: a sum of values times factors."""

    def __init__(self, *terms: Term) -> None:
        self.terms = terms
        self._value: Array | None = None

    @property
    def value(self) -> Array:
        """The sum, computed once."""
        if self._value is None:
            first, *rest = (term.product for term in self.terms)
            self._value = sum(rest, first)
        return self._value

    @property
    def scaled(self) -> Term | None:
        """The one term; None if there are several, or it has no factor."""
        has_one = len(self.terms) == 1 and self.terms[0].factor is not None
        return self.terms[0] if has_one else None


def factors_first(closed: Any, operands: Sequence[Any], moving: Collection[int]) -> list[Any]:
    """The results of a closed program that is linear in the operands at the indices ``moving``."""
    given = [Sum(Term(x)) if i in moving else x for i, x in enumerate(operands)]
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
    return [Sum(Term(y)) for y in bind(equation, list(map(_value, operands)))]


def _sum(name: str, operands: list[Any], again: list[bool]) -> Sum | None:
    """The result with its factors; None if it is to be computed as it is.

    ``again``: whether operands have other uses, too. Then factors that differ in sign or scale
    alone would be two arrays, not one.
    """
    match name, operands:
        case "mul", [Sum() as x, fixed] | [fixed, Sum() as x]:
            if x.scaled is None or (any(again) and jnp.ndim(fixed) == 0):
                return Sum(Term(x.value, fixed))
            value, factor, _ = x.scaled
            return Sum(Term(value, _wide(factor) * _wide(fixed), True))
        case "div", [Sum(scaled=(value, factor, _)), fixed] if not again[0]:
            return Sum(Term(value, _wide(factor) / _wide(fixed), True))
        case "neg", [Sum(scaled=(value, factor, is_merged))] if not again[0]:
            return Sum(Term(value, -factor, is_merged))
        case "add" | "add_any", [Sum() as x, Sum() as y] if not all(again):
            both = zip((x, y), again, strict=True)
            parts = [[Term(z.value)] if used and not z.scaled else z.terms for z, used in both]
            return _added(*parts)
    return None


def _added(left: Sequence[Term], right: Sequence[Term]) -> Sum:
    """A sum in which each value occurs once."""
    terms = list(left)
    for term in right:
        same = [i for i, other in enumerate(terms) if other.value is term.value]
        if same:
            (i,) = same
            unit = np.ones((), term.value.dtype)
            both = (unit if each.factor is None else each.factor for each in (terms[i], term))
            one, other = map(_wide, both)
            terms[i] = Term(term.value, one + other, True)
        else:
            terms.append(term)
    return Sum(*terms)


def _wide(x: Any) -> Array:
    """In float32 or better: factors are rounded once."""
    return jnp.asarray(x, np.result_type(np.float32, x.dtype))


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Sum) else x
