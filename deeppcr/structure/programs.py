"""Equations with inner programs: calls, branches, loops, derivative rules and linear solves.

A label represents what the value and the derivative of an element depend on. For everything that
jax differentiates itself, the value determines both. A function with a derivative rule may combine
other entries in it. So it is followed twice: as it is evaluated, and as it is differentiated. A
`jax.custom_vjp` defines only how cotangents propagate back, and is not followed.
"""

import operator
from collections.abc import Callable
from itertools import starmap
from typing import Any

import jax
import numpy as np

from deeppcr.arrays import avals_of, combine, floating, partition
from deeppcr.structure.walk import LabelRule, Labels, Visit, Walk
from depth.jaxprs import Program, bind, called, scan_parts, without_constants

TRIPS = 8  # of a loop until no more elements depend on the state


def call(visit: Visit) -> list[Labels]:
    """A program with the operands and the results of the equation."""
    return visit.walk.program(called(visit.equation), visit.operands, visit.used)


def cond(visit: Visit) -> list[Labels]:
    """Any of the branches; the choice depends on everything that the index depends on."""
    index, *operands = visit.operands
    branches = visit.params["branches"]
    results = [visit.walk.program(branch, operands, visit.used) for branch in branches]
    return visit.combined(visit.everywhere(index), *results)


def scan(visit: Visit) -> list[Labels]:
    """A loop of which one trip represents all: a scanned value has one label for all trips."""
    constants, carried, _ = scan_parts(visit.equation)
    end = constants + carried
    rows = [_row(visit, labels) for labels in visit.operands[end:]]

    def trip(state: list[Labels]) -> list[Labels]:
        inputs = [*visit.operands[:constants], *state, *rows]
        return visit.walk.program(visit.params["jaxpr"], inputs)

    return _fixed_point(visit, trip, visit.operands[constants:end])


def _row(visit: Visit, labels: Labels) -> Labels:
    """One label for all elements along the first axis, which is removed."""
    axes = [] if labels is None else [(axis, axis - 1) for axis in range(1, labels.ndim)]
    return visit.groups.move_axes(labels, axes, len(axes))


def while_loop(visit: Visit) -> list[Labels]:
    """A loop whose number of trips depends on everything that its condition depends on."""
    params, walk, body = visit.params, visit.walk, without_constants(visit.params["body_jaxpr"])
    first, start = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    unchanged = list(
        starmap(operator.is_, zip(body.outvars, body.invars[start - first :], strict=True))
    )

    def trip(state: list[Labels]) -> list[Labels]:
        (going,) = walk.program(params["cond_jaxpr"], [*visit.operands[:first], *state])
        results = walk.program(body, [*visit.operands[first:start], *state])
        goings = [_leading(visit, going, shape) for shape in visit.results]
        return combine(visit.combined(results, goings), unchanged, partition(results, unchanged))

    return _fixed_point(visit, trip, visit.operands[start:])


def _leading(visit: Visit, going: Labels, shape: tuple[int, ...]) -> Labels:
    """The labels of a condition, for a result of this ``shape``.

    Under `jax.vmap` it has the first axes of the results.
    """
    if going is None or going.shape != shape[: going.ndim]:
        return visit.groups.all_of(going)
    return going[(..., *(None,) * (len(shape) - going.ndim))]


def _fixed_point(
    visit: Visit, trip: Callable[[list[Labels]], list[Labels]], state: list[Labels]
) -> list[Labels]:
    """The results of a trip after which no more elements depend on the state, if it comes soon."""
    carried = len(state)
    for _ in range(TRIPS):
        extent = _extent(state)
        results = trip(state)
        rows = zip(state, results, visit.results, strict=False)
        state = [visit.groups.combine(a, b, shape=shape) for a, b, shape in rows]
        if _extent(state) == extent:  # the same elements meet in any further trip
            stacked = zip(results[carried:], visit.results[carried:], strict=True)
            return [*state, *(None if x is None else np.broadcast_to(x, s) for x, s in stacked)]
    return visit.walk.unknown(visit)


def _extent(state: list[Labels]) -> int:
    """The number of elements that depend on the state of the chain."""
    return sum(int(np.count_nonzero(labels)) for labels in state if labels is not None)


def derivative_rule(visit: Visit) -> list[Labels]:
    """The labels of a function's results, joined with those of its rule."""
    equation, walk = visit.equation, visit.walk
    if visit.params.get("symbolic_zeros", True):  # it may depend on which tangents are zero
        return walk.unknown(visit)  # or is a `jax.custom_vjp`
    moves, floats = floating(equation.invars), floating(equation.outvars)
    if equation not in walk.derivatives:
        walk.derivatives[equation] = _derivative(equation, moves)
    # Neither program is differentiated: it is a derivative, or has one of its own.
    whole = Walk(walk.groups, {**walk.rules, "derivative rule": call})
    values = whole.program(called(equation), visit.operands)
    operands = [*visit.operands, *partition(visit.operands, moves)]
    results = whole.program(walk.derivatives[equation], operands)
    tangents = combine([None] * len(values), floats, results[len(values) :])
    return visit.combined(values, results[: len(values)], tangents)


def _derivative(equation: Any, moves: list[bool]) -> Program:
    """Operands and tangents to results and tangents."""

    def run(operands: list[Any], tangents: list[Any]) -> list[Any]:
        results, pushed = jax.jvp(
            lambda *moving: bind(equation, combine(operands, moves, moving)),
            partition(operands, moves),
            tangents,
        )
        return [*results, *partition(pushed, floating(results))]

    avals = avals_of(equation.invars)
    return Program.of(jax.make_jaxpr(run)(avals, partition(avals, moves)))


def custom_linear_solve(visit: Visit) -> list[Labels]:
    """The solution x of A x = b, and the one for b' - A' x, which is its derivative."""
    lengths, programs, walk = visit.params["const_lengths"], visit.params["jaxprs"], visit.walk
    right = visit.operands[sum(lengths) :]
    first = lengths.matvec + lengths.vecmat
    constants = visit.operands[first : first + lengths.solve]
    solution = walk.program(programs.solve, [*constants, *right])
    product = walk.program(programs.matvec, [*visit.operands[: lengths.matvec], *solution])
    change = visit.combined(right, product)
    return visit.combined(solution, walk.program(programs.solve, [*constants, *change]))


PROGRAMS: dict[str, LabelRule] = {
    "call": call,
    "derivative rule": derivative_rule,
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "custom_linear_solve": custom_linear_solve,
}
