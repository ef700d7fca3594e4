"""Equations that hold programs: calls, branches and loops, with the derivatives that functions define for themselves."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from deeppcr.jaxprs import is_literal, without_constants
from deeppcr.structure.derivatives import custom_jvp, custom_linear_solve, custom_vjp
from deeppcr.structure.groups import Labels, filled
from deeppcr.structure.known import Given, Known
from deeppcr.structure.moves import each
from deeppcr.structure.rules import LARGEST
from deeppcr.structure.visit import Rule, Visit
from depth.jaxprs import inside, is_reference, scan_parts

TURNS = 8  # of a loop until nothing new is joined
UNROLLED = 4096  # equations


def call(visit: Visit) -> list[Labels]:
    """A program with the operands and the results of the equation."""
    return enter(
        visit, without_constants(visit.params.get("jaxpr", visit.params.get("call_jaxpr")))
    )


def enter(visit: Visit, jaxpr: Any, first: int = 0) -> list[Labels]:
    """A program that takes the operands from ``first`` on."""
    known = Known(jaxpr, [visit.known.asked(atom) for atom in visit.equation.invars[first:]])
    return visit.walk.program(jaxpr, visit.operands[first:], known, visit.wanted)


def cond(visit: Visit) -> list[Labels]:
    """Any of the branches; which one, depends on what the index depends on."""
    branches, which = visit.params["branches"], visit.value(0)
    if which is not None:
        branches = [branches[min(max(int(which), 0), len(branches) - 1)]]
    found = [enter(visit, without_constants(branch), 1) for branch in branches]
    return [
        visit.groups.combine(visit.operands[0], *results, shape=shape) if wanted else None
        for wanted, shape, *results in zip(visit.wanted, visit.results, *found, strict=True)
    ]


def live(jaxpr: Any, outputs: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """The equations that ``outputs`` depend on, in order, and all variables that these and ``outputs`` read.

    Effects that hand nothing back, as printing does, are no dependence.
    """
    used = {atom for atom in outputs if not is_literal(atom)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        returns = (
            equation.effects
            and not is_collective(equation)
            and (equation.outvars or has_references(equation))
        )
        if returns or any(variable in used for variable in equation.outvars):
            kept.append(equation)
            used |= {atom for atom in equation.invars if not is_literal(atom)}
    return kept[::-1], used


def has_references(equation: Any) -> bool:
    """Whether an equation works on mutable arrays."""
    return any(map(is_reference, (*equation.invars, *equation.outvars)))


def is_collective(equation: Any) -> bool:
    """Whether devices exchange something: the primitive has named axes."""
    found = [
        equation.params[name]
        for name in ("axes", "axis_name", "axis_names")
        if name in equation.params
    ]
    names = [
        name for axes in found for name in (axes if isinstance(axes, tuple | list) else [axes])
    ]
    return any(isinstance(name, str) for name in names)


# -- loops ----------------------------------------------------------------------------------------------------------------------


def scan(visit: Visit) -> list[Labels]:
    """A loop with a known number of turns.

    It is followed turn by turn where that tells more, if it scans or indexes what depends on the state, and where that is
    affordable. Else one turn stands for all: what is carried and what is scanned has one label for all turns.
    """
    body = without_constants(visit.params["jaxpr"])
    consts, carried, _ = scan_parts(visit.equation)
    wanted = _needed(body, consts, carried, visit.wanted)
    scanned = any(labels is not None for labels in visit.operands[consts + carried :])
    cheap = (
        visit.params["length"] * _equations(body) <= UNROLLED
        and sum(map(prod, visit.results)) <= LARGEST
    )
    if (scanned or _indexes(body)) and cheap:
        return _turn_by_turn(visit, body, consts, carried, wanted)
    return _all_turns(visit, body, consts, carried, wanted)


def _turn_by_turn(
    visit: Visit, body: Any, consts: int, carried: int, wanted: list[bool]
) -> list[Labels]:
    length, atoms = visit.params["length"], visit.equation.invars
    state, scanned = (
        list(visit.operands[consts : consts + carried]),
        visit.operands[consts + carried :],
    )
    values = [visit.known.value(atom) for atom in atoms[consts:]]
    numbers, tables = values[:carried], values[carried:]
    results: list[list[Labels]] = [[] for _ in body.outvars[carried:]]
    for turn in reversed(range(length)) if visit.params["reverse"] else range(length):
        given = [
            _constant(number)
            for number in (*numbers, *(None if t is None else t[turn] for t in tables))
        ]
        known = Known(body, [*map(visit.known.asked, atoms[:consts]), *given])
        rows = [None if labels is None else labels[turn] for labels in scanned]
        found = visit.walk.program(body, [*visit.operands[:consts], *state, *rows], known, wanted)
        state, numbers = found[:carried], [known.value(atom) for atom in body.outvars[:carried]]
        for result, labels in zip(results, found[carried:], strict=True):
            result.append(labels)
    stacked: list[Labels] = []
    for result, shape in zip(results, visit.results[carried:], strict=True):
        if visit.params["reverse"]:
            result.reverse()
        none = all(labels is None for labels in result)
        stacked.append(None if none else np.stack([filled(labels, shape[1:]) for labels in result]))
    return [*state, *stacked]


def _constant(value: Any) -> Given | None:
    return None if value is None else lambda depth: value


def _all_turns(
    visit: Visit, body: Any, consts: int, carried: int, wanted: list[bool]
) -> list[Labels]:
    rows = [visit.groups.along(labels, [0]) for labels in visit.operands[consts + carried :]]
    scanned = [None if labels is None else labels[0] for labels in rows]
    known = [*map(visit.known.asked, visit.equation.invars[:consts])]

    def turn(state: list[Labels]) -> list[Labels]:
        return visit.walk.program(
            body, [*visit.operands[:consts], *state, *scanned], Known(body, known), wanted
        )

    found = _settle(
        visit, turn, list(visit.operands[consts : consts + carried]), visit.results[:carried]
    )
    if found is None:
        return visit.walk.unknown(visit)
    results = [
        None if labels is None else np.broadcast_to(labels, shape)
        for labels, shape in zip(found[carried:], visit.results[carried:], strict=True)
    ]
    return [*found[:carried], *results]


def while_loop(visit: Visit) -> list[Labels]:
    """A loop with any number of turns, which depends on what its condition depends on."""
    params, atoms = visit.params, visit.equation.invars
    condition, body = (
        without_constants(params["cond_jaxpr"]),
        without_constants(params["body_jaxpr"]),
    )
    first, start = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    same = [a is b for a, b in zip(body.outvars, body.invars[start - first :], strict=True)]

    def turn(state: list[Labels]) -> list[Labels]:
        asked = [*map(visit.known.asked, atoms[:start])]
        going = visit.walk.program(
            condition, [*visit.operands[:first], *state], Known(condition, asked[:first])
        )
        found = visit.walk.program(
            body, [*visit.operands[first:start], *state], Known(body, asked[first:])
        )
        parts = zip(found, same, visit.results, strict=True)
        return [
            new
            if kept
            else visit.groups.combine(new, _leading(visit, going[0], shape), shape=shape)
            for new, kept, shape in parts
        ]

    found = _settle(visit, turn, list(visit.operands[start:]), visit.results)
    return visit.walk.unknown(visit) if found is None else found


def _leading(visit: Visit, going: Labels, shape: tuple[int, ...]) -> Labels:
    """What a condition depends on, for a result of this ``shape``. Under `jax.vmap` it has the first axes of the results."""
    if going is None or going.shape != shape[: going.ndim]:
        return visit.groups.all_of(going)
    return going[(..., *(None,) * (len(shape) - going.ndim))]


def _settle(
    visit: Visit, turn: Any, state: list[Labels], shapes: Sequence[tuple[int, ...]]
) -> list[Labels] | None:
    """The results of a turn that joins nothing new, with what all turns leave in ``state``; None if there is none soon."""
    groups = visit.groups
    for _ in range(TURNS):
        roots, extent = groups.find(groups.parent), _extent(state)
        found = turn(state)
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
    """How many elements depend on the state of the chain."""
    return sum(int(np.count_nonzero(labels)) for labels in state if labels is not None)


def _needed(body: Any, consts: int, carried: int, wanted: list[bool]) -> list[bool]:
    """Which results of a turn are needed for those that are ``wanted`` of the loop."""
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
    """How many equations one run of a program has, loops followed turn by turn."""
    return sum(
        1 + equation.params.get("length", 1) * sum(map(_equations, inside(equation)))
        for equation in jaxpr.eqns
    )


def _indexes(jaxpr: Any) -> bool:
    """Whether a program reads or writes at places that are computed."""
    return any(
        equation.primitive.name.startswith(("dynamic_", "gather", "scatter"))
        or any(map(_indexes, inside(equation)))
        for equation in jaxpr.eqns
    )


CONTROL: dict[str, Rule] = {
    **each("call checkpoint closed_call composite core_call jit pjit remat remat2", call),
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "custom_jvp_call": custom_jvp,
    "custom_vjp_call": custom_vjp,
    "custom_linear_solve": custom_linear_solve,
}
