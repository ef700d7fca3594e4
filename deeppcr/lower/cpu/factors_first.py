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
from functools import cached_property, partial, reduce
from itertools import filterfalse
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

    @property
    def wide_factor(self) -> Array:
        """The factor, as factors are computed."""
        return _wide(np.ones((), self.value.dtype) if self.factor is None else self.factor)

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

    @cached_property
    def value(self) -> Array:
        """The sum, computed once."""
        return reduce(lax.add, list(map(Term.product, self.terms)))

    @property
    def scaled(self) -> Term | None:
        """The one term; None if there are several, or it has no factor."""
        first, *rest = self.terms
        return None if rest or first.factor is None else first


def factors_first(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule, for loops that are linear in what they carry."""
    if not loop.kind.linear:
        return loop, operands

    def step(values: Leaves) -> Leaves:
        states = loop.program.invars[: loop.states]
        return multiplied_first(loop.program, loop.program.environment(values), states)

    return loop.retraced(operands, step)


def multiplied_first(
    program: Program, environment: Mapping[Any, Any], moving: Sequence[Any]
) -> Leaves:
    """The results of a program that is linear in the variables ``moving``."""
    sums = {variable: Sum(Term(environment[variable])) for variable in moving}
    return list(map(_value, _followed(program, {**environment, **sums}, {})))


def _followed(
    program: Program, environment: Mapping[Any, Any], limits: dict[Any, float]
) -> list[Any]:
    """The results of a program; ``limits``: the exponents of variables."""
    uses = Counter(filterfalse(is_literal, program.outvars))  # how often each variable is read
    for equation in program.eqns:
        uses.update(filterfalse(is_literal, equation.invars))
    rule = partial(_results, uses, limits)
    return interpret(program, environment, program.outvars, rule)


def _results(
    uses: Counter[Any], limits: dict[Any, float], equation: Any, operands: list[Any]
) -> Sequence[Any]:
    """The results of an equation; ``limits``: the exponents of variables, to which it adds."""
    exponents = [
        _of_literal(x) if is_literal(x) else limits.get(x, UNKNOWN) for x in equation.invars
    ]
    if Sum not in map(type, operands):
        limits |= dict.fromkeys(equation.outvars, _exponent(equation, exponents))
        return bind(equation, operands)
    inner = called(equation) if primitive(equation).inlines else None
    if inner is not None and "prevent_cse" not in equation.params:  # of `jax.checkpoint` alone
        program, environment = entered(inner, operands)
        return _followed(program, environment, dict(zip(program.invars, exponents, strict=True)))
    is_shared = [not is_literal(x) and uses[x] > 1 for x in equation.invars]
    result = _sum(equation.primitive.name, operands, is_shared, exponents)
    if result is not None:
        return [result]
    return list(map(Sum, map(Term, bind(equation, list(map(_value, operands))))))


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


def _sum(
    name: str, operands: list[Any], is_shared: list[bool], exponents: list[float]
) -> Sum | None:
    """The result with its factors; None if it is to be computed as it is.

    ``is_shared``: whether operands have other uses, too. Then factors that differ in sign or scale
    alone would be two arrays, not one. ``exponents``: of the operands.
    """
    match name, operands:
        case "mul", [Sum(), Sum()]:  # one is of an inner loop, of values and their tangents
            return None
        case "mul", [Sum() as x, fixed] | [fixed, Sum() as x]:
            exponent = min(exponents)  # what the program is linear in has `UNKNOWN`
            if (
                x.scaled is None
                or (any(is_shared) and jnp.ndim(fixed) == 0)
                or exponent + x.scaled.exponent > LARGEST
            ):
                return Sum(Term(x.value, fixed, exponent))
            factor = lax.mul(x.scaled.wide_factor, _wide(fixed))
            return Sum(Term(x.scaled.value, factor, exponent + x.scaled.exponent))
        case "neg", [Sum(scaled=(value, factor, exponent))] if not is_shared[0]:
            return Sum(Term(value, lax.neg(factor), exponent))
        case "add" | "add_any", [Sum() as x, Sum() as y]:
            if not all(is_shared) or bool(x.scaled) != bool(y.scaled):
                return _added(*map(_summands, (x, y), is_shared))
    return None


def _summands(x: Sum, is_shared: bool) -> Sequence[Term]:
    """The terms of a sum; of one that others read, too, its value, which is computed anyway."""
    return [Term(x.value)] if is_shared and not x.scaled else x.terms


def _added(left: Sequence[Term], right: Sequence[Term]) -> Sum:
    """A sum in which each value occurs once."""
    terms = list(left)
    for term in right:
        i = next((i for i, x in enumerate(terms) if x.value is term.value), None)
        if i is None:
            terms.append(term)
        else:
            factor = lax.add(terms[i].wide_factor, term.wide_factor)
            terms[i] = Term(term.value, factor, max(terms[i].exponent, term.exponent) + 1)
    return Sum(*terms)


def _wide(x: Any) -> Array:
    """In float32 or better: factors are rounded once."""
    return lax.convert_element_type(x, float32_or_better(x.dtype))


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Sum) else x
