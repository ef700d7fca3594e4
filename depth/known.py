"""Integers that are known before a program runs: from literals and iota, by moves and arithmetic.

They determine indices and trip counts. They are evaluated lazily, so arrays that are not needed
cost nothing.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from depth.jaxprs import is_literal, producers
from depth.primitives import Array, primitive

LARGEST = 1 << 20  # elements
DEEPEST = 64  # equations in a row


class Known:
    """The known integers of one program.

    Args:
        jaxpr: the program.
        given: the values of variables that are known from outside.
    """

    def __init__(self, jaxpr: Any, given: Mapping[Any, int] | None = None):
        self._jaxpr = jaxpr
        self._given = given or {}
        self._found: dict[Any, Array | None] = {}

    def value(self, atom: Any, depth: int = 0) -> Array | None:
        """The value of an operand; None if it is unknown, or not integer or boolean."""
        dtype = getattr(atom.aval, "dtype", None)
        is_integer = isinstance(dtype, np.dtype) and dtype.kind in "iub"
        if not is_integer or atom.aval.size > LARGEST or depth > DEEPEST:
            return None
        if is_literal(atom) or atom in self._given:
            return np.asarray(atom.val if is_literal(atom) else self._given[atom], dtype)
        if atom not in self._found:
            self._found[atom] = self._evaluate(atom, depth)
        return self._found[atom]

    def number(self, atom: Any) -> int | None:
        """The value of an operand that is one integer."""
        if getattr(atom.aval, "size", None) != 1 or (value := self.value(atom)) is None:
            return None
        return int(value.item())

    @cached_property
    def _made_by(self) -> dict[Any, Any]:
        return producers(self._jaxpr)

    def _evaluate(self, atom: Any, depth: int) -> Array | None:
        equation = self._made_by.get(atom)
        if equation is None or (function := primitive(equation).numpy) is None:
            return None
        values = [self.value(operand, depth + 1) for operand in equation.invars]
        operands = [value for value in values if value is not None]
        if len(operands) < len(values):
            return None
        with np.errstate(all="ignore"):  # integers wrap around, as they do on the device
            results = function(equation, operands)
        result = np.asarray(results[equation.outvars.index(atom)])
        return np.broadcast_to(result.astype(atom.aval.dtype), atom.aval.shape)
