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

from deeppcr.adjoint.transposed import moving, transposed_by
from deeppcr.arrays.partition import combine, floating, partition, zero_tangent
from deeppcr.arrays.state import Leaves
from deeppcr.chain.step import Step
from deeppcr.programs.effects import CUSTOM_VJP
from deeppcr.programs.retrace import Retrace, with_literals
from depth.jaxprs import Program, bind, equations, inside
from depth.primitives import primitive

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
        both = dataclasses.replace(own, program=_Calls(_both_modes).of(own.jaxpr), derivative=None)
        rules = dataclasses.replace(own, jaxpr=_Calls(_forward_rule).of(own.jaxpr))
        _FOUND[step] = both, dataclasses.replace(step, derivative=rules)
    return _FOUND[step]


class _Calls(Retrace):
    """The program with every call of a `jax.custom_vjp` replaced.

    Attributes:
        call: ``(equation, operands) -> results``, in its place.
    """

    def __init__(self, call: Callable[[Any, Sequence[Any]], list[Any]]) -> None:
        self.call = call

    def of(self, program: Program) -> Program:
        """The program, with constants, which rules close over, as literals."""
        return with_literals(*self.program(program))

    def replace(self, equation: Any, operands: list[Any]) -> list[Any] | None:
        """See `Retrace`."""
        if _is_rule(equation):
            return self.call(equation, operands)
        if primitive(equation).kind == "derivative rule" or not _holds_rule(equation):
            return None
        if equation.primitive.name == "solve_chain" and self.call is _forward_rule:
            return list(equation.params["structures"].by_forward_rules(operands))  # of the step
        return super().replace(equation, operands)


def _is_rule(equation: Any) -> bool:
    return equation.primitive.name in CUSTOM_VJP


def _holds_rule(equation: Any) -> bool:
    return any(map(_is_rule, (each for held in inside(equation) for each in equations(held))))


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
    return results, back


def _both_modes(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The function with tangents whose transpose is its rule."""

    @jax.custom_jvp
    def call(*operands: Any) -> list[Any]:
        return list(map(_batched_in_front, bind(equation, operands)))

    def push(primals: Leaves, tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        mask, moved = moving(primals, tangents)
        results, back = _pull(equation, primals, mask)
        given, (kept, tree) = floating(equation.outvars), jax.tree.flatten(back)
        rule = lambda kept, g: jax.tree.unflatten(tree, kept)(g)[0]  # noqa: E731
        pushed = transposed_by(rule, moved, partition(results, given), kept)
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
