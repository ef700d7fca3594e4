"""Steps that call a `jax.custom_vjp` with a linear rule, with derivatives in both modes.

The user asserts that it is linear (``linear_vjp=True``): clipped gradients are not. A rule that is
linear in its cotangents, ``ct -> R ct``, is the transpose of ``t -> R^T t``, which defines a
forward mode, too. Here every call of such a function becomes one of a `jax.custom_jvp` with these
tangents. Its transpose is the rule itself, applied as in the sequential program. Then the step is
differentiated like any other.

In second derivatives jax differentiates the rule, and the output of the forward rule instead of the
function: `forward_rules` is the step that does so.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax import lax
from jax.extend.core import Literal

from deeppcr.adjoint.transposed import moving, transposed_by, zero_tangent
from deeppcr.avals import abstract
from deeppcr.effects import CUSTOM_VJP
from deeppcr.partition import combine, floating, partition
from deeppcr.rewrites.cut_first import apply, evaluate
from deeppcr.state import Leaves
from deeppcr.step import Step
from depth.jaxprs import (
    Program,
    bind,
    equations,
    inside,
    is_literal,
    rewritten,
    without_constants,
)
from depth.primitives import primitive

Replace = Callable[[Any, Sequence[Any]], list[Any]]
_FOUND: WeakKeyDictionary[Step, tuple[Step, Step]] = WeakKeyDictionary()


def differentiated(step: Step) -> tuple[Step, Step]:
    """The step with derivatives in both modes, and the step to solve when it is differentiated.

    The second has the values of the step, and the derivatives that jax takes of them in second
    derivatives.
    """
    own = step if step.derivative is None else step.derivative
    if not own.has_custom_vjp:
        return own, step
    if step not in _FOUND:
        both = dataclasses.replace(own, program=_replaced(own.jaxpr, _both_modes), derivative=None)
        rules = dataclasses.replace(own, jaxpr=_replaced(own.jaxpr, _forward_rule))
        _FOUND[step] = both, dataclasses.replace(step, derivative=rules)
    return _FOUND[step]


def _replaced(jaxpr: Program, replace: Replace) -> Program:
    """The program with every call of a `jax.custom_vjp` replaced by ``replace``."""
    variables = [*jaxpr.constvars, *jaxpr.invars]

    def f(*values: Any) -> list[Any]:
        known = dict(zip(variables, values, strict=True))
        return evaluate(jaxpr, known, jaxpr.outvars, _replacement(replace))

    closed = jax.make_jaxpr(f)(*[abstract(atom.aval) for atom in variables])
    new, count = _with_literals(closed), len(jaxpr.constvars)
    return new._replace(constvars=new.invars[:count], invars=new.invars[count:])


def _with_literals(closed: Any) -> Program:
    """The program with its constants, which rules close over, as literals."""
    program = Program.of(closed)
    values = zip(program.constvars, getattr(closed, "consts", ()), strict=True)
    literals = {variable: Literal(value, variable.aval) for variable, value in values}

    def put(atoms: Sequence[Any]) -> list[Any]:
        return [atom if is_literal(atom) else literals.get(atom, atom) for atom in atoms]

    equations = [each.replace(invars=put(each.invars)) for each in program.eqns]
    return Program([], program.invars, equations, put(program.outvars))


def _replacement(replace: Replace) -> Callable[[Any, list[Any]], list[Any] | None]:
    def replacement(equation: Any, operands: list[Any]) -> list[Any] | None:
        if _is_rule(equation):
            return replace(equation, operands)
        is_chain = equation.primitive.name == "solve_chain"  # which the step solves
        if is_chain and replace is _forward_rule and _holds_rule(equation):
            return list(equation.params["structures"].by_forward_rules(operands))
        if primitive(equation).kind == "derivative rule" or not _holds_rule(equation):
            return None

        def run(closed: Any, operands: Sequence[Any]) -> list[Any]:
            return apply(closed, operands, replacement)

        found = rewritten(equation, operands, run, _holds_rule_or_is_one)
        return found or bind(_with_programs(equation, run), operands)

    return replacement


def _is_rule(equation: Any) -> bool:
    return equation.primitive.name in CUSTOM_VJP


def _holds_rule(equation: Any) -> bool:
    return any(map(_is_rule, (each for held in inside(equation) for each in equations(held))))


def _holds_rule_or_is_one(equation: Any) -> bool:
    return _is_rule(equation) or _holds_rule(equation)


def _with_programs(equation: Any, run: Callable[[Any, Sequence[Any]], list[Any]]) -> Any:
    """A loop or a branch, with its inner programs run by ``run``."""

    def traced(closed: Any) -> Any:
        inner = without_constants(closed)
        shapes = [abstract(atom.aval) for atom in inner.invars]
        found = jax.make_jaxpr(lambda *operands: run(closed, operands))(*shapes)
        return without_constants(found) if closed is inner else found

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            parts = map(changed, value)
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return traced(value) if hasattr(value, "eqns") else value

    return equation.replace(
        params={name: changed(value) for name, value in equation.params.items()}
    )


def _forward_rule(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The output of the forward rule, which replaces that of the function."""
    constants = equation.params.get("num_consts", 0)  # which it closes over
    mask = [i >= constants and moves for i, moves in enumerate(floating(equation.invars))]
    return _pull(equation, operands, mask)[0]


def _pull(equation: Any, operands: Sequence[Any], mask: Sequence[bool]) -> tuple[list[Any], Any]:
    """The results of an equation, and its rule as a function of cotangents of floating results.

    The results are those that jax takes while it differentiates. The rule gives cotangents of the
    operands in ``mask``.
    """

    def f(differentiated: list[Any]) -> tuple[list[Any], list[Any]]:
        results = bind(equation, combine(operands, mask, differentiated))
        return partition(results, floating(equation.outvars)), results

    _, back, results = jax.vjp(f, partition(operands, mask), has_aux=True)
    return results, lambda cotangents: back(cotangents)[0]


def _both_modes(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The function with tangents whose transpose is its rule."""

    @jax.custom_jvp
    def call(*operands: Any) -> list[Any]:
        return list(map(_batched_in_front, bind(equation, operands)))

    def push(primals: Leaves, tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        mask, moved = moving(primals, tangents)
        results, rule = _pull(equation, primals, mask)
        given = floating(equation.outvars)
        pushed = transposed_by(rule, moved, partition(results, given), partition(primals, mask))
        zeros = list(map(zero_tangent, results))
        return list(map(_batched_in_front, results)), combine(
            zeros, given, map(_batched_in_front, pushed)
        )

    call.defjvp(push, symbolic_zeros=True)
    return list(call(*operands))


def _batched_in_front(x: Any) -> Any:
    """``x``; under `jax.vmap` its batch axis is the first.

    jax 0.10.2: a function in a mapped branch and its rule must have the same batch axes.
    """
    return lax.squeeze(lax.expand_dims(x, [0]), [0])
