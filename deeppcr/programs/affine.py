"""Whether a step is affine in its state, proven equation by equation.

Affine is linear, plus what is independent of the state. Then all steps are one linear recurrence,
which Newton's method solves in one iteration. The proof follows the state through the program:
every value is affine in it or independent of it; anything else ends the proof, and so does a
derivative that is not jax's own.
"""

from collections.abc import Sequence
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


def _follow(closed: Any, inputs: Sequence[bool]) -> list[bool]:
    """Which results of a program depend on the state, from which inputs do."""
    jaxpr = without_constants(closed)
    depends = dict.fromkeys(jaxpr.constvars, False) | dict(zip(jaxpr.invars, inputs, strict=True))
    return interpret(jaxpr, depends, jaxpr.outvars, _results, lambda _: False)


def _results(equation: Any, operands: list[bool]) -> list[bool]:
    """Which results of an equation depend on the state, from which operands do."""
    if not any(operands):
        return [False] * len(equation.outvars)
    name, params = equation.primitive.name, equation.params
    if primitive(equation).kind == "derivative rule" or name == "stop_gradient":
        raise _NotAffine
    inner = None if name == "linear_map" else called(equation)
    if inner is not None:
        return _follow(inner, operands)
    if name == "cond" and not operands[0]:
        branches = [_follow(each, operands[1:]) for each in params["branches"]]
        return list(map(any, zip(*branches, strict=True)))
    if name == "scan":
        return _of_a_loop(equation, operands)
    if not _is_linear(equation, operands):
        raise _NotAffine
    return [True] * len(equation.outvars)


def _of_a_loop(equation: Any, operands: list[bool]) -> list[bool]:
    """The same of a loop: trips are followed until no more of the carry depends on the state."""
    constants, carry, _ = scan_parts(equation)
    end = constants + carry
    state = operands[constants:end]
    while True:
        trip = [*operands[:constants], *state, *operands[end:]]
        results = _follow(equation.params["jaxpr"], trip)
        after = [a or b for a, b in zip(state, results, strict=False)]
        if after == state:
            return [*state, *results[carry:]]
        state = after


def _is_linear(equation: Any, operands: list[bool]) -> bool:
    """Whether an equation is linear in the operands that depend on the state, all together."""
    name, params = equation.primitive.name, equation.params
    if name == "linear_map":
        return not any(operands[: params["role"].known])
    if name == "custom_linear_solve":
        return not any(operands[: sum(params["const_lengths"])])
    if not all(jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in equation.outvars):
        return False
    is_alone = sum(operands) == 1
    by_name = {
        "jointly": True,
        "each": is_alone,
        "first": is_alone and operands[0],
        "last": is_alone and operands[-1],
    }
    return by_name.get(primitive(equation).linear, False)
