"""The number of trips of a while loop, if it is provable from the program.

The proof follows integers in the condition and the body that are the counter plus a constant, or a
constant.  The number is provable if the condition compares such a counter with such a constant, and
the body adds a constant to the counter.
"""

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from depth.jaxprs import called, interpret, without_constants
from depth.primitives import primitive

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}


class Affine(NamedTuple):
    """The input ``source`` plus ``offset``; the constant ``offset`` if ``source`` is None.

    ``via`` are the offsets and dtypes of this value and of those that it was computed from.
    Integers wrap around, so it is valid only while all of them fit.
    """

    source: int | None
    offset: int
    via: tuple[tuple[int, Any], ...] = ()

    def fits(self, *inputs: int) -> bool:
        """Whether nothing wraps around while the input is one of these, or between them."""
        least, most = min(inputs), max(inputs)
        return all(
            in_range(least + offset, dtype) and in_range(most + offset, dtype)
            for offset, dtype in self.via
        )


class Test(NamedTuple):
    """``left name right``."""

    name: str
    left: Affine
    right: Affine


Value = Affine | Test | None


def in_range(value: int, dtype: Any) -> bool:
    """Whether an integer dtype holds ``value``."""
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)


def copies(equation: Any) -> bool:
    """Whether the one element of the result is that of the operand, cast or not."""
    known = primitive(equation)
    atoms = [*equation.invars, *equation.outvars]
    moves = known.kind == "move" and known.numpy is not None
    return (moves or equation.primitive.name == "convert_element_type") and (
        len(atoms) == 2 and all(getattr(atom.aval, "size", None) == 1 for atom in atoms)
    )


def follow(jaxpr: Any, inputs: list[Value]) -> list[Value]:
    """The known form of each result, given that of each input."""
    jaxpr = without_constants(jaxpr)
    known = dict.fromkeys(jaxpr.constvars) | dict(zip(jaxpr.invars, inputs, strict=True))
    return interpret(jaxpr, known, jaxpr.outvars, _results, _constant)


def _constant(literal: Any) -> Value:
    value = np.asarray(literal.val).item() if np.ndim(literal.val) == 0 else None
    return Affine(None, int(value)) if isinstance(value, int) else None


def _results(equation: Any, operands: list[Value]) -> list[Value]:
    inner = called(equation)
    if inner is not None:
        return follow(inner, operands)
    sizes = [getattr(variable.aval, "size", None) for variable in equation.outvars]
    return [_result(equation, operands)] if sizes == [1] else [None] * len(sizes)


def _result(equation: Any, operands: list[Value]) -> Value:
    if copies(equation) and isinstance(operands[0], Test):
        return operands[0]
    name = equation.primitive.name
    match "copy" if copies(equation) else name, operands:
        case "copy", [Affine(source, offset)]:
            pass
        case "add", [Affine(source, x), Affine(None, y)] | [Affine(None, x), Affine(source, y)]:
            offset = x + y
        case "sub", [Affine(source, x), Affine(None, y)]:
            offset = x - y
        case _, [Affine() as first, Affine() as second] if name in MIRRORED:
            return Test(name, first, second)
        case _:
            return None
    dtype = getattr(equation.outvars[0].aval, "dtype", None)  # of random keys, no dtype of numpy's
    if not (isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.integer)):
        return None
    if source is None:
        return Affine(None, offset) if in_range(offset, dtype) else None
    via = [operand.via for operand in operands if isinstance(operand, Affine)]
    return Affine(source, offset, (*chain.from_iterable(via), (offset, dtype)))


def trip_count(equation: Any, operands: list[int | None]) -> int | None:
    """The number of trips of a ``while`` equation, given its known operands.

    None if it is not provable.
    """
    params = equation.params
    given: list[Value] = [None if value is None else Affine(None, value) for value in operands]
    first = params["cond_nconsts"]
    second = params["cond_nconsts"] + params["body_nconsts"]
    init = operands[second:]

    def trip(state: list[Value]) -> list[Value]:
        return follow(params["body_jaxpr"], given[first:second] + state)

    own: list[Value] = [Affine(i, 0) for i in range(len(init))]
    state = list(own)
    for i, (after, constant) in enumerate(zip(trip(own), given[second:], strict=True)):
        if not isinstance(after, Affine) or not isinstance(constant, Affine):
            continue
        if after[:2] == (i, 0) and after.fits(constant.offset):  # no cast changes it
            state[i] = constant
    (test,) = follow(params["cond_jaxpr"], given[:first] + state)
    if not isinstance(test, Test):
        return None
    if test.left.source is None:
        test = Test(MIRRORED[test.name], test.right, test.left)
    counter = test.left.source
    if counter is None or test.right.source is not None:
        return None
    step, start = trip(state)[counter], init[counter]
    if not isinstance(step, Affine) or step.source != counter or start is None:
        return None
    trips = _count(test.name, start, step.offset, test.right.offset - test.left.offset)
    if trips is None or not test.left.fits(start, start + trips * step.offset):
        return None
    last = start + max(trips - 1, 0) * step.offset  # that a trip starts from
    return trips if trips == 0 or step.fits(start, last) else None


def _count(name: str, start: int, step: int, bound: int) -> int | None:
    """The trips of ``while i name bound: i += step`` from ``i = start``, without limits.

    None if it never ends.
    """
    if name in ("gt", "ge"):  # downwards is upwards, mirrored
        return _count(MIRRORED[name], -start, -step, -bound)
    if name == "ne":
        trips, rest = divmod(bound - start, step) if step else (0, bound - start)
        return trips if rest == 0 and trips >= 0 else None
    if name == "le":
        bound += 1
    if start >= bound:
        return 0
    return -((start - bound) // step) if step > 0 else None
