"""Whether a program is linear in some of its inputs, proven equation by equation.

The rule of a `jax.custom_vjp` need not be linear in its cotangents (clipped gradients), nor be the
derivative (straight-through estimators). If it is linear, it is the transpose of some matrix, and
the adjoint states of a chain solve a linear recurrence with it. The proof follows a symbolic
cotangent through the program of the rule: every value is zero, independent of it, or linear in it;
anything else ends the proof.

The step of a chain may be affine in its state: linear, plus what is independent of it. Then all
steps are one linear recurrence, which Newton's method solves in one iteration.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from depth.jaxprs import (
    Program,
    bind,
    called,
    equations,
    interpret,
    location,
    scan_parts,
    without_constants,
)
from depth.primitives import primitive

RULES = ("custom_vjp_call", "custom_vjp_call_jaxpr")
OTHER_DERIVATIVES = (*RULES, "custom_jvp_call", "stop_gradient")


class Dependence(enum.IntEnum):
    """How a value depends on the cotangent."""

    ZERO = 0
    FREE = 1
    LINEAR = 2


ZERO, FREE, LINEAR = Dependence


class NotLinear(Exception):
    """A failed proof: the operation that is not proven linear."""


def nonlinear_rule(jaxpr: Any) -> str:
    """The `jax.custom_vjp` whose rule is not proven linear, and why; "" if all are."""
    for equation in equations(jaxpr):
        if equation.primitive.name in RULES:
            try:
                for nested in _prove(equation):
                    _prove(nested)  # in second derivatives rules of rules are used
            except NotLinear as reason:
                called_by = without_constants(called(equation))
                name = getattr(getattr(called_by, "debug_info", None), "func_name", "a function")
                return f"the jax.custom_vjp of {name} ({location(equation)}): {reason}"
    return ""


def is_affine(program: Any, states: int) -> bool:
    """Whether the first ``states`` results are affine in as many inputs, with jax's derivatives."""
    inputs = [LINEAR] * states + [FREE] * (len(program.invars) - states)
    try:
        _Reader(affine=True).follow(program._replace(outvars=program.outvars[:states]), inputs)
    except NotLinear:
        return False
    return True


def floating(atoms: Sequence[Any]) -> list[bool]:
    """Which of the values are floating, and so differentiable."""
    return [jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in atoms]


def moving(equation: Any) -> list[bool]:
    """Which operands of a `jax.custom_vjp` are differentiable: not those that it closes over."""
    constants = equation.params.get("num_consts", 0)
    return [i >= constants and moves for i, moves in enumerate(floating(equation.invars))]


def pull(equation: Any, operands: Sequence[Any], mask: Sequence[bool]) -> tuple[list[Any], Any]:
    """The results of an equation, and its rule as a function of cotangents of floating results.

    The results are those that jax takes while it differentiates. The rule gives cotangents of the
    operands in ``mask``.
    """

    def f(differentiated: list[Any]) -> tuple[list[Any], list[Any]]:
        rest = iter(differentiated)
        values = [next(rest) if moves else x for x, moves in zip(operands, mask, strict=True)]
        results = bind(equation, values)
        given = zip(results, floating(equation.outvars), strict=True)
        return [y for y, moves in given if moves], results

    chosen = [x for x, moves in zip(operands, mask, strict=True) if moves]
    _, back, results = jax.vjp(f, chosen, has_aux=True)
    return results, lambda cotangents: back(cotangents)[0]


def _prove(equation: Any) -> list[Any]:
    """Raise `NotLinear` unless the rule is linear; the equations in it with rules of their own."""
    if equation.params.get("symbolic_zeros"):
        raise NotLinear("it may look at which cotangents are zero (symbolic_zeros=True)")
    operands = [_shape(atom) for atom in equation.invars]
    given = zip(equation.outvars, floating(equation.outvars), strict=True)
    cotangents = [_shape(atom) for atom, moves in given if moves]

    def rule(operands: list[Any], cotangents: list[Any]) -> list[Any]:
        back: list[Any] = pull(equation, operands, moving(equation))[1](cotangents)
        return back

    try:
        closed = jax.make_jaxpr(rule)(operands, cotangents)
    except Exception as error:
        raise NotLinear(str(error).partition("\n")[0]) from None
    program = Program.of(closed)
    if any(each.primitive.name == "remat_opt" for each in equations(program)):
        # jax 0.10.2: outside of a loop it fails to differentiate such a forward rule.
        raise NotLinear("its second derivatives are jax's alone (optimize_remat=True)")
    found = _Reader().follow(program, [FREE] * len(operands) + [LINEAR] * len(cotangents))
    if FREE in found:
        raise NotLinear("a result does not depend on the cotangent, and is not zero")
    return [each for each in equations(program) if each.primitive.name in RULES]


def _shape(atom: Any) -> Any:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype, weak_type=atom.aval.weak_type)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Follows values through a program.

    Attributes:
        affine: whether the sum of a linear value and an independent one is linear, too; and whether
            the derivative has to be jax's own.
    """

    affine: bool = False

    def follow(self, jaxpr: Any, inputs: Sequence[Dependence]) -> list[Dependence]:
        """How the results of a program depend on its linear inputs."""
        known = dict.fromkeys(jaxpr.constvars, FREE) | dict(zip(jaxpr.invars, inputs, strict=True))
        return interpret(jaxpr, known, jaxpr.outvars, self._results, _literal)

    def _results(self, equation: Any, operands: list[Any]) -> list[Dependence]:
        known = primitive(equation)
        if LINEAR not in operands:
            is_zero = known.linear == "jointly" and _floats(equation, operands) == {ZERO}
            inner = called(equation)
            if inner is not None:
                return self.follow(without_constants(inner), operands)
            return [ZERO if is_zero else FREE] * len(equation.outvars)
        if self.affine and equation.primitive.name in OTHER_DERIVATIVES:
            raise NotLinear(f"{equation.primitive.name} has a derivative of its own")
        found = self._of_a_program(equation, operands)
        if found is not None:
            return found
        others = [each for each in operands if each != LINEAR]
        linear = {ZERO, FREE, LINEAR} if self.affine else {ZERO, LINEAR}
        is_linear = {
            "jointly": _floats(equation, operands) <= linear,
            "each": len(others) == len(operands) - 1,
            "first": operands[0] == LINEAR and len(others) == len(operands) - 1,
            "last": operands[-1] == LINEAR and len(others) == len(operands) - 1,
        }
        if not is_linear.get(known.linear, False) or not all(floating(equation.outvars)):
            raise NotLinear(f"{equation.primitive.name} is not linear in the cotangent")
        return [LINEAR] * len(equation.outvars)

    def _of_a_program(self, equation: Any, operands: list[Dependence]) -> list[Dependence] | None:
        """The results of an equation with inner programs; None for any other."""
        name, params = equation.primitive.name, equation.params
        inner = called(equation)
        if inner is not None:
            return self.follow(without_constants(inner), operands)
        if name == "cond":
            which, *rest = operands
            branches = [self.follow(without_constants(each), rest) for each in params["branches"]]
            if which == LINEAR:
                raise NotLinear("a branch is chosen by the cotangent")
            return [self._join(*each) for each in zip(*branches, strict=True)]
        if name == "scan":
            constants, carry, _ = scan_parts(equation)
            body = without_constants(params["jaxpr"])
            before, state, xs = _split(operands, constants, carry)

            def step(state: list[Dependence]) -> list[Dependence]:
                return self.follow(body, [*before, *state, *xs])

            state = self._fixed(lambda state: step(state)[:carry], state)
            return [*state, *step(state)[carry:]]
        if name == "while":
            sizes = params["cond_nconsts"], params["body_nconsts"]
            of_condition, of_body, state = _split(operands, *sizes)
            body, condition = (
                without_constants(params[key]) for key in ("body_jaxpr", "cond_jaxpr")
            )
            state = self._fixed(lambda state: self.follow(body, [*of_body, *state]), state)
            if LINEAR in self.follow(condition, [*of_condition, *state]):
                raise NotLinear("a loop ends by the cotangent")
            return state
        if name == "custom_linear_solve":
            constants = sum(params["const_lengths"])
            right = operands[constants:]
            if LINEAR not in operands[:constants] and (self.affine or FREE not in right):
                return [LINEAR] * len(equation.outvars)
        return None

    def _fixed(self, body: Any, state: list[Dependence]) -> list[Dependence]:
        """The dependence of a carry after any number of trips."""
        while True:
            after = [self._join(a, b) for a, b in zip(state, body(state), strict=True)]
            if after == state:
                return state
            state = after

    def _join(self, *cases: Dependence) -> Dependence:
        """The dependence of a value that is one of several."""
        if FREE in cases and LINEAR in cases and not self.affine:
            raise NotLinear("a value is either linear in the cotangent or independent of it")
        return max(cases)


def _literal(atom: Any) -> Dependence:
    return FREE if jnp.ndim(atom.val) or atom.val != 0 else ZERO


def _floats(equation: Any, operands: Sequence[Dependence]) -> set[Dependence]:
    pairs = zip(operands, floating(equation.invars), strict=True)
    return {each for each, moves in pairs if moves}


def _split(operands: list[Any], first: int, second: int) -> tuple[list[Any], ...]:
    return operands[:first], operands[first : first + second], operands[first + second :]
