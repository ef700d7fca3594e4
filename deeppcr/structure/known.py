"""Integers that a program knows before it runs: from literals and iota, by arithmetic. They say where an index points.

They are evaluated when a rule asks for them, so arrays that nobody asks for cost nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from deeppcr.jaxprs import called, is_literal, without_constants
from deeppcr.structure.groups import Array
from deeppcr.structure.moves import MOVES

LARGEST = 1 << 20  # elements
DEEPEST = 64  # equations in a row

Given = Callable[[int], Array | None]


class Known:
    """The known integers of one program.

    Args:
        jaxpr: the program.
        inputs: for each of its inputs what asks for the value, given the depth of the question; None for an unknown one.
    """

    def __init__(self, jaxpr: Any, inputs: Sequence[Given | None] = ()):
        self._given = dict(zip(jaxpr.invars, inputs, strict=False))
        self._equations = jaxpr.eqns
        self._made: dict[Any, Any] | None = None
        self._found: dict[Any, Array | None] = {}

    def value(self, atom: Any, depth: int = 0) -> Array | None:
        """The value of an operand; None if it is not known, or no integers or booleans."""
        dtype = getattr(atom.aval, "dtype", None)
        if (
            not isinstance(dtype, np.dtype)
            or dtype.kind not in "iub"
            or atom.aval.size > LARGEST
            or depth > DEEPEST
        ):
            return None
        if is_literal(atom):
            return np.asarray(atom.val, dtype)
        if atom not in self._found:
            self._found[atom] = self._evaluate(atom, depth)
        return self._found[atom]

    def asked(self, atom: Any) -> Given:
        """What asks for the value of an operand, for the inputs of a program inside."""
        return partial(self.value, atom)

    def _evaluate(self, atom: Any, depth: int) -> Array | None:
        given = self._given.get(atom)
        if given is not None:
            return given(depth + 1)
        if self._made is None:
            self._made = {
                variable: equation for equation in self._equations for variable in equation.outvars
            }
        equation = self._made.get(atom)
        if equation is None:
            return None
        name, which = equation.primitive.name, equation.outvars.index(atom)
        if (inner := called(equation)) is not None:
            inner = without_constants(inner)
            return Known(inner, [self.asked(operand) for operand in equation.invars]).value(
                inner.outvars[which], depth + 1
            )
        if name not in FOLDED and name not in MOVES:
            return None
        operands = []
        for operand in equation.invars:
            value = self.value(operand, depth + 1)
            if value is None:
                return None
            operands.append(value)
        with np.errstate(all="ignore"):  # integers wrap around, as they do on the device
            result = (
                FOLDED[name](equation, operands)
                if name in FOLDED
                else MOVES[name](equation, operands)[which]
            )
        return (
            None
            if result is None
            else np.broadcast_to(np.asarray(result).astype(atom.aval.dtype), atom.aval.shape)
        )


Fold = Callable[[Any, list[Array]], Any]


def _by(function: Any) -> Fold:
    return lambda equation, operands: function(*operands)


def _divide(equation: Any, operands: list[Array]) -> Array | None:
    """Towards zero, as XLA does."""
    over, under = operands
    if not under.all():
        return None
    quotient: Array = (np.abs(over) // np.abs(under)) * (np.sign(over) * np.sign(under))
    return quotient


def _remainder(equation: Any, operands: list[Array]) -> Array | None:
    return np.fmod(*operands) if operands[1].all() else None


def _select(equation: Any, operands: list[Array]) -> Array:
    which, *cases = operands
    return np.choose(which.astype(np.intp), cases)


def _iota(equation: Any, operands: list[Array]) -> Array:
    shape, axis = equation.params["shape"], equation.params["dimension"]
    count = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(count, tuple(shape))


FOLDED: dict[str, Fold] = {
    "add": _by(np.add),
    "sub": _by(np.subtract),
    "mul": _by(np.multiply),
    "neg": _by(np.negative),
    "abs": _by(np.abs),
    "sign": _by(np.sign),
    "max": _by(np.maximum),
    "min": _by(np.minimum),
    "clamp": _by(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "div": _divide,
    "rem": _remainder,
    "and": _by(np.bitwise_and),
    "or": _by(np.bitwise_or),
    "xor": _by(np.bitwise_xor),
    "not": _by(np.invert),
    "eq": _by(np.equal),
    "ne": _by(np.not_equal),
    "lt": _by(np.less),
    "le": _by(np.less_equal),
    "gt": _by(np.greater),
    "ge": _by(np.greater_equal),
    "convert_element_type": _by(lambda x: x),
    "select_n": _select,
    "iota": _iota,
}
