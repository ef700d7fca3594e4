"""Random numbers that a step draws from inputs alone, drawn once for all steps.

Noise of given keys, or of a key that is carried and split, depends on no state and no parameter, so
that it has no derivative. Drawing it before the chain avoids redrawing it in every iteration of
Newton's method and in the gradient.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.arrays.state import Leaves, floating, partition
from deeppcr.chain.eager import compiled_once
from deeppcr.chain.step import Step
from depth.counts import nbytes
from depth.jaxprs import (
    Program,
    bind,
    equations,
    interpret,
    moved_by,
    needed,
    read_by,
)
from depth.primitives import of_kind

MOST_BYTES = 1 << 26  # of all steps: 64 MB; beyond it a step draws its own


def drawn_first(step: Step, captured: Leaves, inputs: Leaves, length: int) -> tuple[Step, Leaves]:
    """The step that takes such numbers as more inputs, and these inputs; or the same step."""
    program, first = step.jaxpr, _drawing(step)
    numbers = first.outvars
    if not numbers or length * sum(map(nbytes, numbers)) > MOST_BYTES:
        return step, []
    variables = [*program.invars[step.states :], *program.constvars]
    values = dict(zip(variables, [*inputs, *captured], strict=True))
    arrays = [values[x] for x in first.invars]
    constants = [values[x] for x in first.constvars]
    drawn = compiled_once(_draw, step, arrays, constants)
    rest = needed(program, numbers, program.outvars)
    program = program._replace(invars=[*program.invars, *numbers], eqns=rest)
    return dataclasses.replace(step, jaxpr=program), drawn


def _draw(step: Step, inputs: Leaves, captured: Leaves) -> Leaves:
    """The numbers of all steps, from what their program reads."""
    first = _drawing(step)

    def one(inputs: Leaves) -> Leaves:
        return interpret(first, first.environment([*captured, *inputs]), first.outvars, bind)

    return jax.vmap(one)(inputs)


def _drawing(step: Step) -> Program:
    """The program of the numbers that the rest of a step reads, from what it reads itself.

    It draws all that depends on no floating number.
    """
    program = step.jaxpr
    if not of_kind(equations(program), "random"):  # most often
        return Program([], [], [], [])
    inputs = program.invars[step.states :]
    random: list[Any] = []
    for equation in program.eqns:
        within = equations(program._replace(eqns=[equation]))  # the equation itself, too
        are_keys = all(jnp.issubdtype(y.aval.dtype, jax.dtypes.prng_key) for y in equation.outvars)
        if of_kind(within, "random") and not are_keys:
            random += equation.outvars
    variables = [*inputs, *program.constvars]
    floats = partition(variables, floating(variables))
    with_state = moved_by(program, [*program.invars[: step.states], *floats])
    by_inputs = moved_by(program, inputs)  # what is not is the same in all steps
    drawn = moved_by(program, by_inputs.intersection(random)) - with_state
    rest = [each for each in program.eqns if drawn.isdisjoint(each.outvars)]
    numbers = [x for x in read_by(rest, program.outvars) if x in drawn]
    first = needed(program, (), numbers)
    is_read = read_by(first).__contains__
    constants = list(filter(is_read, program.constvars))
    return Program(constants, list(filter(is_read, inputs)), first, numbers)
