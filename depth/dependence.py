"""Which results of a program depend on which of its inputs.

Coarser than `deeppcr.structure`: one label for a whole array, and a comparison or a rounding counts
as a dependence.
"""

from collections.abc import Callable, Sequence
from typing import Any

from depth.jaxprs import called, interpret, scan_parts, without_constants

Sources = frozenset[int]
NOTHING: Sources = frozenset()


def dependence(jaxpr: Any, inputs: Sequence[Sources]) -> list[Sources]:
    """The dependences of each result of ``jaxpr``, given those of each input."""
    known = dict.fromkeys(jaxpr.constvars, NOTHING) | dict(zip(jaxpr.invars, inputs, strict=True))
    return interpret(jaxpr, known, jaxpr.outvars, _results, lambda atom: NOTHING)


def _results(equation: Any, operands: list[Sources]) -> list[Sources]:
    params, kind = equation.params, equation.primitive.name
    if (inner := called(equation)) is not None:
        return dependence(without_constants(inner), operands)
    if kind == "cond":
        branches = [
            dependence(without_constants(branch), operands[1:]) for branch in params["branches"]
        ]
        return [operands[0].union(*found) for found in zip(*branches, strict=True)]
    if kind == "scan":
        consts, carried, _ = scan_parts(equation)
        body = without_constants(params["jaxpr"])
        fixed, state = operands[:consts], operands[consts : consts + carried]
        scanned = operands[consts + carried :]
        return _to_fixed_point(lambda state: dependence(body, [*fixed, *state, *scanned]), state)
    if kind == "while":
        first, start = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        condition = without_constants(params["cond_jaxpr"])
        body = without_constants(params["body_jaxpr"])

        def trip(state: list[Sources]) -> list[Sources]:
            (going,) = dependence(condition, [*operands[:first], *state])
            found = dependence(body, [*operands[first:start], *state])
            return [sources | going for sources in found]

        return _to_fixed_point(trip, operands[start:])
    return [NOTHING.union(*operands)] * len(equation.outvars)


def _to_fixed_point(
    trip: Callable[[list[Sources]], list[Sources]], state: list[Sources]
) -> list[Sources]:
    """The results of a trip that adds nothing to ``state``, which leads the results."""
    while True:
        found = trip(state)
        joined = [a | b for a, b in zip(state, found, strict=False)]
        if joined == state:
            return [*state, *found[len(state) :]]
        state = joined
