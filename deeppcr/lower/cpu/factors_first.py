"""Loops of linear steps in which all factors of a value are multiplied first.

The transposed derivative of a step multiplies a cotangent by one factor after another: those of an
LSTM cell have eleven between states. ``(lam * a) * b`` is ``lam * (a * b)``, and ``a * b`` needs no
cotangent: it is computed for all steps at once, and a step reads fewer arrays. XLA compiles a loop
that reads less than a kilobyte in a trip to one function.

Values are equal up to rounding. But ``a * b`` may overflow where ``(lam * a) * b`` does not: in a
branch that is not taken ``lam`` is 0. So one of the two has to be bounded, as gates are. Bounds are
known as exponents, ``|a| <= 2**exponent``, and what is not known to be bounded has `UNKNOWN`.
"""

# jax 0.10.2, 2 cores, the loop of an adjoint: a GRU of 4 to 16 units takes 0.5 to 0.7 of the time,
# an LSTM of 4 units 0.1.

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from deeppcr.arrays.state import Leaves, float32_or_better
from deeppcr.lower.steps import Loop, Operands
from depth.jaxprs import Program, bind, called, entered, interpret, is_literal
from depth.primitives import primitive

# Exponents of functions of real numbers whose results are bounded.
LIMITED = dict.fromkeys(("cos", "erf", "logistic", "sign", "sin", "tanh"), 0.0) | {"erfc": 1.0}
LARGEST = 127.0  # exponent of a product that is computed first: that of float32
UNKNOWN = 100.0  # more than half of it, so that one of two factors is bounded


BOUNDED = "deeppcr: a result of a function with this bound: "


def bounded(value: Array, equation: Any) -> Array:
    """A result of an equation that the program which reads it does not show, with its bound."""
    name = equation.primitive.name
    is_limited = name in LIMITED and jnp.issubdtype(value.dtype, jnp.floating)
    return checkpoint_name(value, BOUNDED + name) if is_limited else value


class Term(NamedTuple):
    """A value times a factor.

    Attributes:
        value: of one equation, or an operand of the program.
        factor: None for 1.
        exponent: of the factor.
    """

    value: Array
    factor: Any = None
    exponent: float = 0.0

    def product(self) -> Array:
        """The product, in the dtype of the value."""
        if self.factor is None:
            return self.value
        value = lax.convert_element_type(self.value, self.factor.dtype)
        return lax.convert_element_type(lax.mul(self.factor, value), self.value.dtype)


class Sum:
    """A value that depends on what the program is linear in: a sum of values times factors."""

    def __init__(self, *terms: Term) -> None:
        self.terms = terms
        self._value: Array | None = None

    @property
    def value(self) -> Array:
        """The sum, computed once."""
        if self._value is None:
            first, *rest = map(Term.product, self.terms)
            self._value = reduce(lax.add, rest, first)
        return self._value

    @property
    def scaled(self) -> Term | None:
        """The one term; None if there are several, or it has no factor."""
        has_one = len(self.terms) == 1 and self.terms[0].factor is not None
        return self.terms[0] if has_one else None


def factors_first(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule, for loops that are linear in what they carry."""
    if not loop.kind.linear:
        return loop, operands

    def step(read: Leaves) -> Leaves:
        states = loop.program.invars[: loop.states]
        return multiplied_first(loop.program, loop.known(read), states)

    return loop.retraced(operands, step)


def multiplied_first(program: Program, known: Mapping[Any, Any], moving: Sequence[Any]) -> Leaves:
    """The results of a program that is linear in the variables ``moving``."""
    given = {variable: Sum(Term(x)) if variable in moving else x for variable, x in known.items()}
    return list(map(_value, _followed(program, given, {})))


def _followed(program: Program, known: Mapping[Any, Any], limits: dict[Any, float]) -> list[Any]:
    """The results of a program; ``limits``: the exponents of variables."""
    rule = partial(_results, _uses(program), limits)
    return interpret(program, known, program.outvars, rule)


def _uses(program: Program) -> Counter[Any]:
    """How often each variable is read."""
    atoms = [*(x for each in program.eqns for x in each.invars), *program.outvars]
    return Counter(x for x in atoms if not is_literal(x))


def _results(
    uses: Counter[Any], limits: dict[Any, float], equation: Any, operands: list[Any]
) -> Sequence[Any]:
    """The results of an equation; ``limits``: the exponents of variables, to which it adds."""
    exponents = [
        _of_literal(x) if is_literal(x) else limits.get(x, UNKNOWN) for x in equation.invars
    ]
    if not any(isinstance(x, Sum) for x in operands):
        limits |= dict.fromkeys(equation.outvars, _exponent(equation, exponents))
        return bind(equation, operands)
    inner = called(equation) if primitive(equation).inlines else None
    if inner is not None and "prevent_cse" not in equation.params:  # of `jax.checkpoint` alone
        program, known = entered(inner, operands)
        return _followed(program, known, dict(zip(program.invars, exponents, strict=True)))
    again = [not is_literal(x) and uses[x] > 1 for x in equation.invars]
    found = _sum(equation.primitive.name, operands, again, exponents)
    if found is not None:
        return [found]
    return [Sum(Term(y)) for y in bind(equation, list(map(_value, operands)))]


def _of_literal(literal: Any) -> float:
    largest = float(np.max(np.abs(literal.val)))
    return math.log2(max(1.0, largest)) if math.isfinite(largest) else UNKNOWN


def _exponent(equation: Any, exponents: list[float]) -> float:
    """The exponent of the results, given those of the operands."""
    name = equation.primitive.name
    largest = max(exponents, default=UNKNOWN)
    match name:
        case "mul":
            return sum(exponents)
        case "add" | "add_any" | "sub":
            return largest + 1
        case "square":
            return 2 * largest
        case "integer_pow" if equation.params["y"] > 0:
            return equation.params["y"] * largest
        case "select_n":
            return max(exponents[1:])
        case "abs" | "convert_element_type" | "max" | "min" | "neg":
            return largest
        case "bitcast_convert_type":
            return UNKNOWN
        case "name" if equation.params["name"].startswith(BOUNDED):
            return LIMITED[equation.params["name"].removeprefix(BOUNDED)]
    if name in LIMITED and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
        return LIMITED[name]
    return largest if primitive(equation).kind == "move" else UNKNOWN


def _sum(name: str, operands: list[Any], again: list[bool], exponents: list[float]) -> Sum | None:
    """The result with its factors; None if it is to be computed as it is.

    ``again``: whether operands have other uses, too. Then factors that differ in sign or scale
    alone would be two arrays, not one. ``exponents``: of the operands.
    """
    match name, operands:
        case "mul", [Sum(), Sum()]:  # one is of an inner loop, of values and their tangents
            return None
        case "mul", [Sum() as x, fixed] | [fixed, Sum() as x]:
            exponent = min(exponents)  # what the program is linear in has `UNKNOWN`
            if (
                x.scaled is None
                or (any(again) and jnp.ndim(fixed) == 0)
                or exponent + x.scaled.exponent > LARGEST
            ):
                return Sum(Term(x.value, fixed, exponent))
            value, factor, other = x.scaled
            return Sum(Term(value, lax.mul(_wide(factor), _wide(fixed)), exponent + other))
        case "neg", [Sum(scaled=(value, factor, exponent))] if not again[0]:
            return Sum(Term(value, lax.neg(factor), exponent))
        case "add" | "add_any", [Sum() as x, Sum() as y]:
            both = list(zip((x, y), again, strict=True))
            if not all(again) or bool(x.scaled) != bool(y.scaled):
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
            exponent = max(terms[i].exponent, term.exponent) + 1
            terms[i] = Term(term.value, lax.add(one, other), exponent)
        else:
            terms.append(term)
    return Sum(*terms)


def _wide(x: Any) -> Array:
    """In float32 or better: factors are rounded once."""
    return lax.convert_element_type(x, float32_or_better(x.dtype))


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Sum) else x
