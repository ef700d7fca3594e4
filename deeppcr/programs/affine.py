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
    if equation.primitive.name == "linear_map":
        of_matrix = operands[: equation.params["role"].known]
        return None if any(of_matrix) else [True] * len(equation.outvars)
    inner = called(equation)
    if inner is not None:
        return _follow(without_constants(inner), operands)
    if equation.primitive.name == "cond":
        which, *rest = operands
        if which:
            raise _NotAffine
        branches = [_follow(without_constants(each), rest) for each in equation.params["branches"]]
        return list(map(any, zip(*branches, strict=True)))
    if equation.primitive.name == "scan":
        constants, carry, _ = scan_parts(equation)
        body = without_constants(equation.params["jaxpr"])
        end = constants + carry
        state = operands[constants:end]
        while True:  # until no more of the carry depends on the state
            found = _follow(body, [*operands[:constants], *state, *operands[end:]])
            after = [a or b for a, b in zip(state, found, strict=False)]
            if after == state:
                return [*state, *found[carry:]]
            state = after
    if equation.primitive.name == "custom_linear_solve":
        of_matrix = operands[: sum(equation.params["const_lengths"])]
        return None if any(of_matrix) else [True] * len(equation.outvars)
    return None
