"""Functions with derivatives of their own, which may combine what the functions keep apart, and the other way round.

A label stands for what the value and the derivative of an element depend on. For all that jax differentiates itself, the value
says both. A `jax.custom_jvp` is followed twice: as it is evaluated, and as it is differentiated. A `jax.custom_vjp` says only how
cotangents go back, so every result is given a label, and what reaches an operand from it is joined with that operand.
"""

from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.jaxprs import Program, called, without_constants
from deeppcr.structure.groups import Labels
from deeppcr.structure.known import Known
from deeppcr.structure.visit import Visit


def custom_jvp(visit: Visit) -> list[Labels]:
    """What a `jax.custom_jvp` gives, with what its rule gives."""
    if visit.params["symbolic_zeros"] and not visit.walk.differentiated:
        return visit.walk.unknown(visit)  # the rule may look at which tangents there are
    values = _values(visit)
    if visit.walk.differentiated:
        return values
    floats = _floating(visit.equation.invars)
    tangents = [labels for labels, moves in zip(visit.operands, floats, strict=True) if moves]
    found = _follow(visit, visit.walk.derivative(visit.equation, _pushed), tangents)
    again, moved = found[: len(values)], iter(found[len(values) :])
    results = zip(values, again, _floating(visit.equation.outvars), visit.results, strict=True)
    return [
        visit.groups.combine(a, b, next(moved) if moves else None, shape=shape)
        for a, b, moves, shape in results
    ]


def custom_vjp(visit: Visit) -> list[Labels]:
    """What a `jax.custom_vjp` gives, with what its rule hands back to the operands."""
    if visit.params["symbolic_zeros"] and not visit.walk.differentiated:
        return visit.walk.unknown(visit)
    values = _values(visit)
    if visit.walk.differentiated:
        return values
    floats = _floating(visit.equation.outvars)
    groups, results = visit.groups, []
    for labels, moves, shape in zip(values, floats, visit.results, strict=True):
        own = (
            groups.new(shape) if moves else None
        )  # what does not depend on the state may still hand something back
        results.append(groups.combine(labels, own, shape=shape))
    cotangents = [labels for labels, moves in zip(results, floats, strict=True) if moves]
    found = _follow(visit, visit.walk.derivative(visit.equation, _pulled), cotangents)
    again, back = found[: len(values)], iter(found[len(values) :])
    results = [
        groups.combine(a, b, shape=s) for a, b, s in zip(results, again, visit.results, strict=True)
    ]
    for labels, moves in zip(visit.operands, _floating(visit.equation.invars), strict=True):
        received = next(back) if moves else None
        if labels is not None and received is not None:
            both = (labels != 0) & (received != 0)
            groups.unite(labels[both], received[both])
    return results


def custom_linear_solve(visit: Visit) -> list[Labels]:
    """The solution x of A x = b, and the one for b' - A' x, which is its derivative."""
    lengths, programs = visit.params["const_lengths"], visit.params["jaxprs"]
    right = visit.operands[sum(lengths) :]
    shapes = visit.results
    first = lengths.matvec + lengths.vecmat

    def solve(right: list[Labels]) -> list[Labels]:
        return _run(visit, programs.solve, [*visit.operands[first : first + lengths.solve], *right])

    solution = solve(right)
    product = _run(visit, programs.matvec, [*visit.operands[: lengths.matvec], *solution])
    change = [
        visit.groups.combine(b, p, shape=shape)
        for b, p, shape in zip(right, product, shapes, strict=True)
    ]
    return [
        visit.groups.combine(x, y, shape=s)
        for x, y, s in zip(solution, solve(change), shapes, strict=True)
    ]


def _run(visit: Visit, closed: Any, inputs: list[Labels]) -> list[Labels]:
    jaxpr = without_constants(closed)
    return visit.walk.program(jaxpr, inputs, Known(jaxpr))


def _values(visit: Visit) -> list[Labels]:
    """What the function itself gives; its own program is not differentiated."""
    jaxpr = without_constants(called(visit.equation))
    return visit.walk.program(jaxpr, visit.operands, _known(visit, jaxpr), differentiated=True)


def _follow(visit: Visit, program: Any, moving: list[Labels]) -> list[Labels]:
    return visit.walk.program(
        program, [*visit.operands, *moving], _known(visit, program), differentiated=True
    )


def _known(visit: Visit, jaxpr: Any) -> Known:
    return Known(jaxpr, [visit.known.asked(atom) for atom in visit.equation.invars])


def _floating(atoms: Any) -> list[bool]:
    return [jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in atoms]


def _pushed(equation: Any) -> Program:
    """``(*operands, *tangents) -> (*results, *tangents)``, tangents of what is floating."""
    return _differentiated(
        equation,
        equation.invars,
        lambda f, x, tangents: _flat(jax.jvp(f, (x,), (tangents,), has_aux=True)),
    )


def _pulled(equation: Any) -> Program:
    """``(*operands, *cotangents) -> (*results, *cotangents)``, cotangents of what is floating."""

    def pull(f: Any, x: Any, cotangents: Any) -> Any:
        _, back, results = jax.vjp(f, x, has_aux=True)
        return [*results, *back(cotangents)[0]]

    return _differentiated(equation, equation.outvars, pull)


def _flat(found: Any) -> list[Any]:
    _, tangents, results = found
    return [*results, *tangents]


def _differentiated(equation: Any, moving: Any, transform: Any) -> Program:
    floats, given = _floating(equation.invars), _floating(equation.outvars)
    operands = [atom.aval for atom in equation.invars]
    others = [atom.aval for atom, moves in zip(moving, _floating(moving), strict=True) if moves]

    def run(operands: list[Any], others: list[Any]) -> Any:
        def function(x: list[Any]) -> tuple[list[Any], list[Any]]:
            floating = iter(x)
            values = [
                next(floating) if moves else value
                for value, moves in zip(operands, floats, strict=True)
            ]
            with equation.ctx.manager:
                results = equation.primitive.bind(
                    *values, **equation.primitive.get_bind_params(equation.params)
                )
            return [result for result, moves in zip(results, given, strict=True) if moves], list(
                results
            )

        return transform(
            function,
            [value for value, moves in zip(operands, floats, strict=True) if moves],
            others,
        )

    return Program.of(jax.make_jaxpr(run)(operands, others))
