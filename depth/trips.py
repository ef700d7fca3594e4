"""The number of trips of a while loop, if it is provable from the program.

The proof follows integers in the condition and the body that are the counter plus a constant, or a
constant.  The number is provable if the condition compares such a counter with such a constant, and
the body adds a constant to the counter.
"""

from typing import Any, NamedTuple

import numpy as np

from depth.jaxprs import called, interpret, is_literal, without_constants
from depth.primitives import primitive

COMPARISONS = frozenset({"lt", "le", "gt", "ge", "ne"})
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}


class Affine(NamedTuple):
    """The input ``source`` plus ``offset``; the constant ``offset`` if ``source`` is None.

    ``via`` are the offsets and dtypes of this value and of those that it was computed from.
    Integers wrap around, so it is valid only while all of them fit.
    """

    source: int | None
    offset: int
    via: tuple[tuple[int, Any], ...] = ()

    def same(self, other: "Value") -> bool:
        """Whether both are the same input plus the same constant."""
        return isinstance(other, Affine) and self[:2] == other[:2]

    def fits(self, low: int, high: int) -> bool:
        """Whether nothing wraps around while the input is between ``low`` and ``high``."""
        return all(
            in_range(low + offset, dtype) and in_range(high + offset, dtype)
            for offset, dtype in self.via
        )


class Comparison(NamedTuple):
    """``left name right``."""

    name: str
    left: Affine
    right: Affine


Value = Affine | Comparison | None


def is_integer(atom: Any) -> bool:
    """Whether an operand or a result holds integers."""
    dtype = getattr(atom.aval, "dtype", None)  # of random keys, no dtype of numpy's
    return isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.integer)


def in_range(value: int, dtype: Any) -> bool:
    """Whether an integer dtype holds ``value``."""
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)


def integer(atom: Any) -> int | None:
    """The value of a literal that is one integer."""
    if is_literal(atom) and np.ndim(atom.val) == 0 and isinstance(np.asarray(atom.val).item(), int):
        return int(atom.val)
    return None


def copies(equation: Any) -> bool:
    """Whether the one element of the result is that of the operand, cast or not."""
    moves = primitive(equation).kind == "move" and primitive(equation).numpy is not None
    atoms = [*equation.invars, *equation.outvars]
    return (moves or equation.primitive.name == "convert_element_type") and (
        len(atoms) == 2 and all(getattr(atom.aval, "size", None) == 1 for atom in atoms)
    )


def follow(jaxpr: Any, inputs: list[Value]) -> list[Value]:
    """The known form of each result, given that of each input."""
    known = dict.fromkeys(jaxpr.constvars) | dict(zip(jaxpr.invars, inputs, strict=True))
    return interpret(jaxpr, known, jaxpr.outvars, _results, _constant)


def _constant(literal: Any) -> Value:
    value = integer(literal)
    return None if value is None else Affine(None, value)


def _results(equation: Any, operands: list[Value]) -> list[Value]:
    inner = called(equation)
    if inner is not None:
        return follow(without_constants(inner), operands)
    sizes = [getattr(variable.aval, "size", None) for variable in equation.outvars]
    return [_result(equation, operands)] if sizes == [1] else [None] * len(sizes)


def _result(equation: Any, operands: list[Value]) -> Value:
    if copies(equation) and isinstance(operands[0], Comparison):
        return operands[0]
    match equation.primitive.name, operands:
        case _, [Affine() as only] if copies(equation):
            return _made(only.source, only.offset, [only], equation)
        case "add", [Affine(source, offset) as left, Affine(None, more) as right]:
            return _made(source, offset + more, [left, right], equation)
        case "add", [Affine(None, more) as left, Affine(source, offset) as right]:
            return _made(source, offset + more, [left, right], equation)
        case "sub", [Affine(source, offset) as left, Affine(None, less) as right]:
            return _made(source, offset - less, [left, right], equation)
        case name, [Affine() as left, Affine() as right] if name in COMPARISONS:
            return Comparison(name, left, right)
    return None


def _made(source: int | None, offset: int, operands: list[Affine], equation: Any) -> Affine | None:
    """A new integer; None if it is not an integer, or a constant that overflows."""
    if not is_integer(equation.outvars[0]):
        return None
    dtype = equation.outvars[0].aval.dtype
    if source is None:
        return Affine(None, offset) if in_range(offset, dtype) else None
    via = tuple(entry for operand in operands for entry in operand.via)
    return Affine(source, offset, (*via, (offset, dtype)))


def trip_count(equation: Any, operands: list[int | None]) -> int | None:
    """The number of trips of a ``while`` equation, given its known operands.

    None if it is not provable.
    """
    params = equation.params
    n_condition, n_body = params["cond_nconsts"], params["body_nconsts"]
    condition, body = (
        without_constants(params["cond_jaxpr"]),
        without_constants(params["body_jaxpr"]),
    )
    init = operands[n_condition + n_body :]

    def fixed(values: list[int | None]) -> list[Value]:
        return [None if value is None else Affine(None, value) for value in values]

    def trip(state: list[Value]) -> list[Value]:
        return follow(body, fixed(operands[n_condition : n_condition + n_body]) + state)

    own = [Affine(i, 0) for i in range(len(init))]
    same = [before.same(result) for result, before in zip(trip(list(own)), own, strict=True)]
    state: list[Value] = [
        Affine(None, value) if unchanged and value is not None else before
        for unchanged, value, before in zip(same, init, own, strict=True)
    ]
    (test,) = follow(condition, fixed(operands[:n_condition]) + state)
    if not isinstance(test, Comparison):
        return None
    if test.left.source is None:
        test = Comparison(MIRRORED[test.name], test.right, test.left)
    if test.left.source is None or test.right.source is not None:
        return None
    counter = test.left.source
    step, start = trip(state)[counter], init[counter]
    if not isinstance(step, Affine) or step.source != counter or start is None:
        return None
    trips = _count(test.name, start, step.offset, test.right.offset - test.left.offset)
    if trips is None or not test.left.fits(*sorted((start, start + trips * step.offset))):
        return None
    last = start + max(trips - 1, 0) * step.offset  # that a trip starts from
    return trips if trips == 0 or step.fits(*sorted((start, last))) else None


def _count(name: str, start: int, step: int, bound: int) -> int | None:
    """The trips of ``while i name bound: i += step`` from ``i = start``, without limits.

    None if it never ends.
    """
    if name in ("gt", "ge"):  # downwards is upwards, mirrored
        name, start, step, bound = MIRRORED[name], -start, -step, -bound
    if name == "ne":
        trips, rest = divmod(bound - start, step) if step else (0, bound - start)
        return trips if rest == 0 and trips >= 0 else None
    if name == "le":
        bound += 1
    if start >= bound:
        return 0
    return -((start - bound) // step) if step > 0 else None
