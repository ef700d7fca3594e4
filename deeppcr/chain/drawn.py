"""Random numbers that a step draws from inputs alone, drawn once for all steps.

Noise of given keys, or of a key that is carried and split, depends on no state and no parameter, so
that it has no derivative. Drawing it before the chain avoids redrawing it in every iteration of
Newton's method and in the gradient.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.arrays.state import Leaves
from deeppcr.chain.eager import compiled_once
from deeppcr.chain.step import Step, extended
from deeppcr.lower import is_eager
from depth.counts import named_axes, nbytes
from depth.jaxprs import (
    Program,
    bind,
    equations,
    has_side_effects,
    inside,
    interpret,
    is_literal,
    needed,
)
from depth.primitives import primitive

MOST_BYTES = 1 << 26  # of all steps: 64 MB; beyond it a step draws its own


def drawn_first(step: Step, captured: Leaves, inputs: Leaves, length: int) -> tuple[Step, Leaves]:
    """The step that takes such numbers as more inputs, and these inputs; or what was given."""
    found = _drawn(step)
    if not found or length * sum(map(nbytes, found)) > MOST_BYTES:
        return step, []
    known = [*step.jaxpr.invars[step.states :], *found]
    constants = dict(zip(step.jaxpr.constvars, captured, strict=True))
    read = _read(step.jaxpr, found)
    arrays = [x for x, v in zip(inputs, known, strict=False) if v in read]
    fixed = [constants[v] for v in step.jaxpr.constvars if v in read]
    is_now = is_eager([*arrays, *fixed])
    drawn = (partial(compiled_once, _draw) if is_now else _draw)(step, arrays, fixed)
    rest = needed(step.jaxpr, found, step.jaxpr.outvars)
    program = step.jaxpr._replace(invars=[*step.jaxpr.invars, *found], eqns=rest)
    return extended(step, program, len(found)), drawn


def _drawn(step: Step) -> list[Any]:
    """The variables that the rest of a step reads of all that depends on no floating number."""
    program = step.jaxpr
    if not any(map(_draws, program.eqns)):  # most often
        return []
    fixed = {x for x in program.constvars if not _floats(x)}  # the same in all steps
    discrete = {x for x in program.invars[step.states :] if not _floats(x)}
    drawn: set[Any] = set()
    for equation in program.eqns:
        atoms = {x for x in equation.invars if not is_literal(x)}
        if not atoms <= fixed | discrete | drawn or _acts(equation):
            continue
        if atoms <= fixed:
            fixed.update(equation.outvars)
        elif atoms & drawn or _draws(equation):
            drawn.update(equation.outvars)
        else:
            discrete.update(equation.outvars)
    read = [x for each in program.eqns if drawn.isdisjoint(each.outvars) for x in each.invars]
    ends = dict.fromkeys(x for x in (*read, *program.outvars) if not is_literal(x))
    return [x for x in ends if x in drawn]


def _floats(variable: Any) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, jnp.inexact))


def _acts(equation: Any) -> bool:
    """Whether it has effects, or communicates."""
    within = [x for each in inside(equation) for x in equations(each)]
    return has_side_effects(equation) or any(map(named_axes, [equation, *within]))


def _draws(equation: Any) -> bool:
    """Whether an equation draws numbers, not keys."""
    if all(jnp.issubdtype(y.aval.dtype, jax.dtypes.prng_key) for y in equation.outvars):
        return False
    within = [x for each in inside(equation) for x in equations(each)]
    return any(primitive(x).kind == "random" for x in [equation, *within])


def _read(program: Program, found: Sequence[Any]) -> set[Any]:
    """The variables that the equations up to ``found`` read."""
    return {x for each in needed(program, (), found) for x in each.invars if not is_literal(x)}


def _draw(step: Step, inputs: Leaves, captured: Leaves) -> Leaves:
    """The numbers of all steps, from the ``inputs`` and the ``captured`` arrays that they read."""
    program, found = step.jaxpr, _drawn(step)
    read = _read(program, found)
    variables = [x for x in program.invars[step.states :] if x in read]
    known = dict(zip([x for x in program.constvars if x in read], captured, strict=True))

    def one(inputs: Leaves) -> Leaves:
        values = known | dict(zip(variables, inputs, strict=True))
        return interpret(program, values, found, bind)

    drawn: Leaves = jax.vmap(one)(inputs)
    return drawn
