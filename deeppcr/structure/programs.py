"""Equations with inner programs: calls, branches, loops, derivative rules and linear solves.

A label represents what the value and the derivative of an element depend on. For everything that
jax differentiates itself, the value determines both. A function with a derivative rule may combine
other entries in it. So it is followed twice: as it is evaluated, and as it is differentiated. A
`jax.custom_vjp` defines only how cotangents propagate back, and is not followed.
"""

from typing import Any

import jax
import numpy as np

from deeppcr.arrays.partition import combine, floating, partition
from deeppcr.structure.groups import Labels
from deeppcr.structure.walk import Rule, Visit
from depth.jaxprs import Program, bind, called, scan_parts, without_constants

TRIPS = 8  # of a loop until no more elements depend on the state


def call(visit: Visit) -> list[Labels]:
    """A program with the operands and the results of the equation."""
    jaxpr = without_constants(called(visit.equation))
    return visit.walk.program(jaxpr, visit.operands, visit.wanted)


def cond(visit: Visit) -> list[Labels]:
    """Any of the branches; the choice depends on everything that the index depends on."""
    branches = map(without_constants, visit.params["branches"])
    found = [visit.walk.program(each, visit.operands[1:], visit.wanted) for each in branches]
    return [
        visit.groups.combine(visit.operands[0], *results, shape=shape) if wanted else None
        for wanted, shape, *results in zip(visit.wanted, visit.results, *found, strict=True)
    ]


def scan(visit: Visit) -> list[Labels]:
    """A loop of which one trip represents all: a scanned value has one label for all trips."""
    body = without_constants(visit.params["jaxpr"])
    consts, carried, _ = scan_parts(visit.equation)
    fixed, state = visit.operands[:consts], visit.operands[consts : consts + carried]
    joined = [visit.groups.along(labels, [0]) for labels in visit.operands[consts + carried :]]
    rows = [None if labels is None else labels[0] for labels in joined]

    def trip(state: list[Labels]) -> list[Labels]:
        return visit.walk.program(body, [*fixed, *state, *rows])

    return _fixed_point(visit, trip, state)


def while_loop(visit: Visit) -> list[Labels]:
    """A loop whose number of trips depends on everything that its condition depends on."""
    params, walk = visit.params, visit.walk
    condition = without_constants(params["cond_jaxpr"])
    body = without_constants(params["body_jaxpr"])
    first, start = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    same = [a is b for a, b in zip(body.outvars, body.invars[start - first :], strict=True)]

    def trip(state: list[Labels]) -> list[Labels]:
        (going,) = walk.program(condition, [*visit.operands[:first], *state])
        found = walk.program(body, [*visit.operands[first:start], *state])
        return [
            new if kept else visit.groups.combine(new, _leading(visit, going, shape), shape=shape)
            for new, kept, shape in zip(found, same, visit.results, strict=True)
        ]

    return _fixed_point(visit, trip, visit.operands[start:])


def _leading(visit: Visit, going: Labels, shape: tuple[int, ...]) -> Labels:
    """The labels of a condition, for a result of this ``shape``.

    Under `jax.vmap` it has the first axes of the results.
    """
    if going is None or going.shape != shape[: going.ndim]:
        return visit.groups.all_of(going)
    return going[(..., *(None,) * (len(shape) - going.ndim))]


def _fixed_point(visit: Visit, trip: Any, state: list[Labels]) -> list[Labels]:
    """The results of a trip after which no more elements depend on the state, if it comes soon."""
    groups, carried, shapes = visit.groups, len(state), visit.results
    for _ in range(TRIPS):
        extent = _extent(state)
        found = trip(state)
        state = [
            groups.combine(a, b, shape=shape)
            for a, b, shape in zip(state, found, shapes, strict=False)
        ]
        if _extent(state) == extent:  # the same elements meet in any further trip
            stacked = zip(found[carried:], shapes[carried:], strict=True)
            return [*state, *(None if x is None else np.broadcast_to(x, s) for x, s in stacked)]
    return visit.walk.unknown(visit)


def _extent(state: list[Labels]) -> int:
    """The number of elements that depend on the state of the chain."""
    return sum(int(np.count_nonzero(labels)) for labels in state if labels is not None)


def derivative_rule(visit: Visit) -> list[Labels]:
    """The labels of a function's results, joined with those of its rule."""
    equation, walk = visit.equation, visit.walk
    jaxpr = without_constants(called(equation))
    if walk.differentiated:
        return walk.program(jaxpr, visit.operands)
    if visit.params.get("symbolic_zeros", True):
        return walk.unknown(
            visit
        )  # a `jax.custom_vjp`, or it may depend on which tangents are zero
    values = walk.program(jaxpr, visit.operands, differentiated=True)
    moves, floats = floating(equation.invars), floating(equation.outvars)
    if id(equation) not in walk.derivatives:  # with the equation: no other gets its id
        walk.derivatives[id(equation)] = equation, _derivative(equation, moves)
    given = [*visit.operands, *partition(visit.operands, moves)]
    found = walk.program(walk.derivatives[id(equation)][1], given, differentiated=True)
    tangents = combine([None] * len(values), floats, found[len(values) :])
    return _combined(visit, values, found[: len(values)], tangents)


def _derivative(equation: Any, moves: list[bool]) -> Program:
    """Operands and tangents to results and tangents."""

    def run(operands: list[Any], tangents: list[Any]) -> list[Any]:
        def function(*x: Any) -> tuple[list[Any], list[Any]]:
            results = bind(equation, combine(operands, moves, x))
            return partition(results, floating(results)), results

        x = partition(operands, moves)
        _, pushed, results = jax.jvp(function, x, tangents, has_aux=True)
        return [*results, *pushed]

    avals = [atom.aval for atom in equation.invars]
    return Program.of(jax.make_jaxpr(run)(avals, partition(avals, moves)))


def custom_linear_solve(visit: Visit) -> list[Labels]:
    """The solution x of A x = b, and the one for b' - A' x, which is its derivative."""
    lengths, programs, walk = visit.params["const_lengths"], visit.params["jaxprs"], visit.walk
    right, first = visit.operands[sum(lengths) :], lengths.matvec + lengths.vecmat
    solver, matrix = without_constants(programs.solve), without_constants(programs.matvec)
    constants = visit.operands[first : first + lengths.solve]
    solution = walk.program(solver, [*constants, *right])
    product = walk.program(matrix, [*visit.operands[: lengths.matvec], *solution])
    change = _combined(visit, right, product)
    return _combined(visit, solution, walk.program(solver, [*constants, *change]))


def _combined(visit: Visit, *results: list[Labels]) -> list[Labels]:
    """The results of the equation that depend on all that these do."""
    each = zip(visit.results, *results, strict=True)
    return [visit.groups.combine(*labels, shape=shape) for shape, *labels in each]


PROGRAMS: dict[str, Rule] = {
    "call": call,
    "derivative rule": derivative_rule,
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "custom_linear_solve": custom_linear_solve,
}
