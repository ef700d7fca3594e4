"""Equations with inner programs: calls, branches and loops."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from deeppcr.structure.derivatives import custom_linear_solve, derivative_rule
from deeppcr.structure.groups import Labels, filled
from deeppcr.structure.walk import LARGEST, Rule, Visit, live
from depth.jaxprs import called, inside, scan_parts, without_constants

TRIPS = 8  # of a loop until nothing new is joined
UNROLLED = 4096  # equations


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
    """A loop with a known number of trips.

    It is followed trip by trip where that proves more: if it scans values that depend on the state,
        and if that is affordable. Otherwise one trip represents all: carried and scanned values
        have one label for all trips.
    """
    body, length = without_constants(visit.params["jaxpr"]), visit.params["length"]
    consts, carried, _ = scan_parts(visit.equation)
    fixed, state = visit.operands[:consts], visit.operands[consts : consts + carried]
    scanned, shapes = visit.operands[consts + carried :], visit.results[carried:]
    wanted = _needed(body, consts, carried, visit.wanted)

    def trip(state: list[Labels], rows: list[Labels]) -> list[Labels]:
        return visit.walk.program(body, [*fixed, *state, *rows], wanted)

    cheap = length * _equations(body) <= UNROLLED and sum(map(prod, visit.results)) <= LARGEST
    if cheap and any(labels is not None for labels in scanned):
        stacked: list[list[Labels]] = []
        for i in reversed(range(length)) if visit.params["reverse"] else range(length):
            found = trip(state, [None if labels is None else labels[i] for labels in scanned])
            state = found[:carried]
            stacked.append(found[carried:])
        order = stacked[::-1] if visit.params["reverse"] else stacked
        return [*state, *map(_stack, zip(*order, strict=True), shapes)]
    joined = [visit.groups.along(labels, [0]) for labels in scanned]
    rows = [None if labels is None else labels[0] for labels in joined]
    reached = _fixed_point(visit, lambda state: trip(state, rows), state, visit.results[:carried])
    if reached is None:
        return visit.walk.unknown(visit)
    results = [
        None if labels is None else np.broadcast_to(labels, shape)
        for labels, shape in zip(reached[carried:], shapes, strict=True)
    ]
    return [*reached[:carried], *results]


def _stack(labels: Sequence[Labels], shape: tuple[int, ...]) -> Labels:
    """The labels of the stacked outputs of all trips."""
    if all(each is None for each in labels):
        return None
    return np.stack([filled(each, shape[1:]) for each in labels])


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

    found = _fixed_point(visit, trip, visit.operands[start:], visit.results)
    return walk.unknown(visit) if found is None else found


def _leading(visit: Visit, going: Labels, shape: tuple[int, ...]) -> Labels:
    """The labels of a condition, for a result of this ``shape``.

    Under `jax.vmap` it has the first axes of the results.
    """
    if going is None or going.shape != shape[: going.ndim]:
        return visit.groups.all_of(going)
    return going[(..., *(None,) * (len(shape) - going.ndim))]


def _fixed_point(
    visit: Visit, trip: Any, state: list[Labels], shapes: Sequence[tuple[int, ...]]
) -> list[Labels] | None:
    """The results of a trip that joins nothing new, after the labels of ``state`` have converged.

    None if they do not converge soon.
    """
    groups = visit.groups
    for _ in range(TRIPS):
        roots, extent = groups.find(groups.parent), _extent(state)
        found = trip(state)
        state = [
            groups.combine(a, b, shape=shape)
            for a, b, shape in zip(state, found, shapes, strict=False)
        ]
        if _extent(state) == extent and np.array_equal(
            groups.find(groups.parent[: len(roots)]), roots
        ):
            return [*state, *found[len(state) :]]
    return None


def _extent(state: list[Labels]) -> int:
    """The number of elements that depend on the state of the chain."""
    return sum(int(np.count_nonzero(labels)) for labels in state if labels is not None)


def _needed(body: Any, consts: int, carried: int, wanted: list[bool]) -> list[bool]:
    """Which results of a trip are needed for those that are ``wanted`` of the loop."""
    while True:
        _, used = live(
            body, [atom for atom, want in zip(body.outvars, wanted, strict=True) if want]
        )
        read = [variable in used for variable in body.invars[consts : consts + carried]]
        more = [a or b for a, b in zip(wanted, read, strict=False)] + wanted[carried:]
        if more == wanted:
            return wanted
        wanted = more


def _equations(jaxpr: Any) -> int:
    """The number of equations in one run of a program, with loops followed trip by trip."""
    return sum(
        1 + equation.params.get("length", 1) * sum(map(_equations, inside(equation)))
        for equation in jaxpr.eqns
    )


CONTROL: dict[str, Rule] = {
    "call": call,
    "derivative rule": derivative_rule,
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "custom_linear_solve": custom_linear_solve,
}
