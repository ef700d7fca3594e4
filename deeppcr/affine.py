"""Whether a step is affine in its state, proven equation by equation.

Affine is linear, plus what is independent of the state. Then all steps are one linear recurrence,
which Newton's method solves in one iteration. The proof follows the state through the program:
every value is affine in it or independent of it; anything else ends the proof, and so does a
derivative that is not jax's own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from depth.jaxprs import called, interpret, scan_parts, without_constants
from depth.primitives import primitive


def is_affine(program: Any, states: int) -> bool:
    """Whether the first ``states`` results are affine in as many inputs, with jax's derivatives."""
    inputs = [i < states for i in range(len(program.invars))]
    try:
        _follow(program._replace(outvars=program.outvars[:states]), inputs)
    except _NotAffine:
        return False
    return True


class _NotAffine(Exception):
    """A failed proof."""


def _follow(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """Which results of a program depend on the state, from which inputs do."""
    known = dict.fromkeys(jaxpr.constvars, False) | dict(zip(jaxpr.invars, inputs, strict=True))
    return interpret(jaxpr, known, jaxpr.outvars, _results, lambda _: False)


def _results(equation: Any, operands: list[bool]) -> list[bool]:
    if not any(operands):
        return [False] * len(equation.outvars)
    known = primitive(equation)
    if known.kind == "derivative rule" or equation.primitive.name == "stop_gradient":
        raise _NotAffine
    found = _of_a_program(equation, operands)
    if found is not None:
        return found
    is_alone = sum(operands) == 1
    is_linear = {
        "jointly": True,
        "each": is_alone,
        "first": is_alone and operands[0],
        "last": is_alone and operands[-1],
    }
    floating = (jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in equation.outvars)
    if not is_linear.get(known.linear, False) or not all(floating):
        raise _NotAffine
    return [True] * len(equation.outvars)


def _of_a_program(equation: Any, operands: list[bool]) -> list[bool] | None:
    """The results of an equation with inner programs; None for any other."""
    name, params = equation.primitive.name, equation.params
    inner = called(equation)
    if inner is not None:
        return _follow(without_constants(inner), operands)
    if name == "cond":
        which, *rest = operands
        if which:
            raise _NotAffine
        branches = [_follow(without_constants(each), rest) for each in params["branches"]]
        return list(map(any, zip(*branches, strict=True)))
    if name == "scan":
        constants, carry, _ = scan_parts(equation)
        body = without_constants(params["jaxpr"])
        before, state, xs = _split(operands, constants, carry)

        def step(state: list[bool]) -> list[bool]:
            return _follow(body, [*before, *state, *xs])

        state = _fixed(lambda state: step(state)[:carry], state)
        return [*state, *step(state)[carry:]]
    if name == "while":
        sizes = params["cond_nconsts"], params["body_nconsts"]
        of_condition, of_body, state = _split(operands, *sizes)
        body, condition = (without_constants(params[key]) for key in ("body_jaxpr", "cond_jaxpr"))
        state = _fixed(lambda state: _follow(body, [*of_body, *state]), state)
        if any(_follow(condition, [*of_condition, *state])):
            raise _NotAffine
        return state
    if name == "custom_linear_solve" and not any(operands[: sum(params["const_lengths"])]):
        return [True] * len(equation.outvars)
    return None


def _fixed(trip: Callable[[list[bool]], list[bool]], state: list[bool]) -> list[bool]:
    """Which leaves of a carry depend on the state after any number of trips."""
    while True:
        after = [a or b for a, b in zip(state, trip(state), strict=True)]
        if after == state:
            return state
        state = after


def _split(operands: list[Any], first: int, second: int) -> tuple[list[Any], ...]:
    return operands[:first], operands[first : first + second], operands[first + second :]
