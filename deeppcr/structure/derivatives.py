"""Functions with derivative rules, which may combine other entries than the functions do.

A label represents what the value and the derivative of an element depend on. For everything that
jax differentiates itself, the value determines both. A `jax.custom_jvp` is followed twice: as it is
evaluated, and as it is differentiated. A `jax.custom_vjp` defines only how cotangents propagate
back, so every result gets a label, and the labels that reach an operand are joined with that of the
operand.
"""

from typing import Any

import jax

from deeppcr.partition import combine, floating, partition
from deeppcr.structure.groups import Labels
from deeppcr.structure.walk import Visit
from depth.jaxprs import Program, bind, called, without_constants


def derivative_rule(visit: Visit) -> list[Labels]:
    """The labels of a function's results, joined with those of its rule."""
    name, params = visit.equation.primitive.name, visit.params
    if params.get("symbolic_zeros", True) and not visit.walk.differentiated:
        return visit.walk.unknown(visit)  # the rule may depend on which tangents are zero
    jaxpr = without_constants(called(visit.equation))
    values = visit.walk.program(jaxpr, visit.operands, differentiated=True)
    if visit.walk.differentiated:
        return values
    if name.startswith("custom_jvp"):
        return _custom_jvp(visit, values)
    return _custom_vjp(visit, values)


def _custom_jvp(visit: Visit, values: list[Labels]) -> list[Labels]:
    """The values of a `jax.custom_jvp`, with their tangents."""
    found = _follow(visit, _pushed, partition(visit.operands, floating(visit.equation.invars)))
    primal, pushed = found[: len(values)], found[len(values) :]
    none: list[Labels] = [None] * len(values)
    moved = combine(none, floating(visit.equation.outvars), pushed)
    results = zip(values, primal, moved, visit.results, strict=True)
    return [visit.groups.combine(*labels, shape=shape) for *labels, shape in results]


def _custom_vjp(visit: Visit, values: list[Labels]) -> list[Labels]:
    """The values of a `jax.custom_vjp`, with the cotangents that its rule returns."""
    floats, groups, results = floating(visit.equation.outvars), visit.groups, []
    for labels, moves, shape in zip(values, floats, visit.results, strict=True):
        # Results that do not depend on the state may still have cotangents.
        results.append(groups.combine(labels, groups.new(shape) if moves else None, shape=shape))
    found = _follow(visit, _pulled, partition(results, floats))
    primal, back = found[: len(values)], found[len(values) :]
    pairs = zip(results, primal, visit.results, strict=True)
    results = [groups.combine(a, b, shape=s) for a, b, s in pairs]
    moving = partition(visit.operands, floating(visit.equation.invars))
    for labels, received in zip(moving, back, strict=True):
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
        constants = visit.operands[first : first + lengths.solve]
        return visit.walk.program(without_constants(programs.solve), [*constants, *right])

    solution = solve(right)
    constants = visit.operands[: lengths.matvec]
    product = visit.walk.program(without_constants(programs.matvec), [*constants, *solution])
    change = [
        visit.groups.combine(b, p, shape=shape)
        for b, p, shape in zip(right, product, shapes, strict=True)
    ]
    return [
        visit.groups.combine(x, y, shape=s)
        for x, y, s in zip(solution, solve(change), shapes, strict=True)
    ]


def _follow(visit: Visit, make: Any, moving: list[Labels]) -> list[Labels]:
    """The labels of the equation's derivative, from those of its operands and of ``moving``."""
    program = visit.walk.derivative(visit.equation, make)
    return visit.walk.program(program, [*visit.operands, *moving], differentiated=True)


def _pushed(equation: Any) -> Program:
    """``(*operands, *tangents) -> (*results, *tangents)``, tangents of floating values."""
    return _differentiated(
        equation,
        equation.invars,
        lambda f, x, tangents: _flat(jax.jvp(f, (x,), (tangents,), has_aux=True)),
    )


def _pulled(equation: Any) -> Program:
    """``(*operands, *cotangents) -> (*results, *cotangents)``, cotangents of floating values."""

    def pull(f: Any, x: Any, cotangents: Any) -> Any:
        _, back, results = jax.vjp(f, x, has_aux=True)
        return [*results, *back(cotangents)[0]]

    return _differentiated(equation, equation.outvars, pull)


def _flat(found: Any) -> list[Any]:
    _, tangents, results = found
    return [*results, *tangents]


def _differentiated(equation: Any, moving: Any, transform: Any) -> Program:
    moves = floating(equation.invars)
    operands = [atom.aval for atom in equation.invars]
    others = [atom.aval for atom in partition(moving, floating(moving))]

    def run(operands: list[Any], others: list[Any]) -> Any:
        def function(x: list[Any]) -> tuple[list[Any], list[Any]]:
            results = bind(equation, combine(operands, moves, x))
            return partition(results, floating(results)), list(results)

        return transform(function, partition(operands, moves), others)

    return Program.of(jax.make_jaxpr(run)(operands, others))
