"""Loops of linear steps in which all factors of a value are multiplied first.

The transposed derivative of a step multiplies a cotangent by one factor after another: those of an
LSTM cell have eleven between states. ``(lam * a) * b`` is ``lam * (a * b)``, and ``a * b`` needs no
cotangent: it is computed for all steps at once, and a step reads fewer arrays. XLA compiles a loop
that reads less than a kilobyte in a trip to one function.

Values are equal up to rounding. But ``a * b`` may overflow where ``(lam * a) * b`` does not: in a
branch that is not taken ``lam`` is 0. So one of the two has to be bounded, as gates are: made of
results of bounded functions and of small numbers, by sums, products and low powers.
"""

# Gradients of 1,024 steps, 2 cores: an LSTM of 8 units takes 0.77 of the time, of 16 units 0.83 to
# 0.88, a GRU of 16 units in a batch of 8 0.88 to 1; smaller ones 0.96 to 1.1 (jax 0.10.2, 0.12.0).

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial, reduce
from itertools import compress
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from deeppcr.arrays import Leaves, float32_or_better
from deeppcr.lower.cpu.products import reads_of
from deeppcr.lower.steps import Loop, Operands
from depth.jaxprs import Program, bind, called, entered, interpret, is_literal
from depth.primitives import primitive

# Functions of real numbers whose results are bounded.
LIMITED = frozenset(("cos", "erf", "erfc", "logistic", "sign", "sin", "tanh"))
# Their results are bounded if their operands are.
CLOSED = frozenset(
    ("abs", "add", "add_any", "convert_element_type", "max", "min", "mul", "neg", "square", "sub")
)
# Of a number in a program: of a few such factors, the product is far from 2**127.
SMALL_NUMBER = 1 << 10
LOW = range(1, 4)  # powers

BOUNDED = "deeppcr: bounded"


def bounded(value: Array, equation: Any) -> Array:
    """A result of an equation that the program which reads it does not show, with its bound."""
    return checkpoint_name(value, BOUNDED) if _is_limited(equation) else value


def _is_limited(equation: Any) -> bool:
    """Whether the results of an equation are bounded, whatever its operands are."""
    is_real = jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating)
    return is_real and equation.primitive.name in LIMITED


class Term(NamedTuple):
    """A value times a factor.

    Attributes:
        value: of one equation, or an operand of the program.
        factor: None for 1.
        is_bounded: whether the factor is.
    """

    value: Array
    factor: Any = None
    is_bounded: bool = True

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
    states = loop.program.invars[: loop.states]
    return loop.retraced(operands, partial(multiplied_first, loop.program, states))


def multiplied_first(program: Program, moving: Sequence[Any], values: Leaves) -> Leaves:
    """The results of a program that is linear in the variables ``moving``."""
    environment = program.environment(values)
    sums = {variable: Sum(Term(environment[variable])) for variable in moving}
    return list(map(_value, _followed(program, {**environment, **sums}, set())))


def _followed(program: Program, environment: Mapping[Any, Any], limited: set[Any]) -> list[Any]:
    """The results of a program; ``limited``: the variables whose values are bounded."""
    rule = partial(_results, reads_of(program), limited)
    return interpret(program, environment, program.outvars, rule)


def _results(
    reads: Counter[Any], limited: set[Any], equation: Any, operands: list[Any]
) -> Sequence[Any]:
    """The results of an equation; ``limited``: the bounded variables, to which it adds."""
    are_bounded = [
        bool(np.max(np.abs(x.val)) <= SMALL_NUMBER) if is_literal(x) else x in limited
        for x in equation.invars
    ]
    if Sum not in map(type, operands):
        limited.update(equation.outvars if _is_bounded(equation, are_bounded) else ())
        return bind(equation, operands)
    inner = called(equation) if primitive(equation).inlines else None
    if inner is not None and "prevent_cse" not in equation.params:  # of `jax.checkpoint` alone
        program, environment = entered(inner, operands)
        return _followed(program, environment, set(compress(program.invars, are_bounded)))
    is_shared = [not is_literal(x) and reads[x] > 1 for x in equation.invars]
    result = _sum(equation.primitive.name, operands, is_shared, are_bounded)
    if result is not None:
        return [result]
    return list(map(Sum, map(Term, bind(equation, list(map(_value, operands))))))


def _is_bounded(equation: Any, are_bounded: list[bool]) -> bool:
    """Whether the results are bounded, given which operands are."""
    name, params = equation.primitive.name, equation.params
    if _is_limited(equation) or (name == "name" and params["name"] == BOUNDED):
        return True
    if name == "select_n":
        return all(are_bounded[1:])
    is_closed = name in CLOSED or (name == "integer_pow" and params["y"] in LOW)
    is_moved = primitive(equation).kind == "move" and name != "bitcast_convert_type"
    return (is_closed or is_moved) and bool(are_bounded) and all(are_bounded)


def _sum(
    name: str, operands: list[Any], is_shared: list[bool], are_bounded: list[bool]
) -> Sum | None:
    """The result with its factors; None if it is to be computed as it is.

    ``is_shared``: whether operands have other uses, too. Then factors that differ in sign or scale
    alone would be two arrays, not one. ``are_bounded``: which operands are.
    """
    match name, operands:
        case "mul", [Sum(), Sum()]:  # one is of an inner loop, of values and their tangents
            return None
        case "mul", [Sum() as x, fixed] | [fixed, Sum() as x]:
            is_bounded = any(are_bounded)  # what the program is linear in is not
            if (
                x.scaled is None
                or (any(is_shared) and jnp.ndim(fixed) == 0)
                or not (is_bounded or x.scaled.is_bounded)
            ):
                return Sum(Term(x.value, fixed, is_bounded))
            factor = lax.mul(x.scaled.wide_factor, _wide(fixed))
            return Sum(Term(x.scaled.value, factor, is_bounded and x.scaled.is_bounded))
        case "neg", [Sum(scaled=(value, factor, is_bounded))] if not is_shared[0]:
            return Sum(Term(value, lax.neg(factor), is_bounded))
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
            terms[i] = Term(term.value, factor, terms[i].is_bounded and term.is_bounded)
    return Sum(*terms)


def _wide(x: Any) -> Array:
    """In float32 or better: factors are rounded once."""
    return lax.convert_element_type(x, float32_or_better(x.dtype))


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Sum) else x
