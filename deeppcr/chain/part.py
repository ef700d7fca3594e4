"""A chain of some leaves of the state: those that the results that are read depend on.

`jax.lax.scan` removes the entries of a carry from which nothing that is read is reached. A
derivative must not keep them with zeros either: zero times an infinite derivative is NaN.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.arrays import Leaves, avals_of, combine, floating, partition
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.programs.calls import without_unused
from deeppcr.programs.dependence import results_of
from depth.jaxprs import (
    Program,
    bind,
    called,
    inside,
    is_literal,
    live_equations,
    needed,
    read_by,
    without_constants,
)
from depth.primitives import primitive

# Their derivative is zero.
FLAT = frozenset({"ceil", "floor", "nextafter", "round", "sign", "stop_gradient"})

Mask = Sequence[bool]  # of the leaves of the state, or of the outputs


def leaves_reached(
    step: Step,
    states: Mask,
    outputs: Mask,
    reach: Callable[[Program, Leaves], Collection[Any]],
) -> list[bool]:
    """The leaves of the state that these leaves and outputs reach in any number of steps.

    And these. ``reach``: the variables that results of a program reach: `variables_read`, or by
    cotangents `variables_pulled`.
    """
    program, count = step.evaluated, step.states
    end = partition(program.outvars[count:], outputs) if outputs else []
    kept = list(states)
    while True:
        reached = reach(program, [*partition(program.outvars[:count], kept), *end])
        more = [keeps or z in reached for keeps, z in zip(kept, program.invars, strict=False)]
        if more == kept:
            return kept
        kept = more


def variables_read(program: Program, results: Leaves) -> Collection[Any]:
    """The variables that these results, and the equations that compute them, read."""
    return read_by(needed(program, (), results), results)


def variables_pulled(program: Any, results: Collection[Any]) -> set[Any]:
    """The variables of a program that cotangents of these results reach."""
    pulled = set(filter(_has_tangent, results))
    for equation in reversed(program.eqns):
        if not pulled.isdisjoint(equation.outvars) and equation.primitive.name not in FLAT:
            reached = [end in pulled for end in equation.outvars]
            pulled.update(filter(_has_tangent, _operands_pulled(equation, reached)))
    return pulled


def _operands_pulled(equation: Any, reached: Sequence[bool]) -> Sequence[Any]:
    """The operands that cotangents of the results that are ``reached`` reach, if they have any."""
    inner = called(equation) if primitive(equation).kind == "call" else None
    if inner is not None:
        body = without_constants(inner)
        within = variables_pulled(body, partition(body.outvars, reached))
        return partition(equation.invars, [x in within for x in body.invars])
    if not inside(equation):
        return equation.invars
    moves = floating(equation.invars)
    # As jax differentiates it: a loop, a branch, a function with a derivative rule.
    avals = avals_of(equation.invars)

    def tangents(t: Leaves, primals: Leaves) -> Leaves:
        def results(*moving: Any) -> Leaves:
            return partition(bind(equation, combine(primals, moves, moving)), reached)

        return jax.jvp(results, partition(primals, moves), t)[1]

    try:
        closed, shapes = jax.make_jaxpr(tangents, return_shape=True)(partition(avals, moves), avals)
    except Exception:  # it has no derivative: where jax takes one, no operand has a tangent
        return equation.invars
    reads = iter(without_unused(closed, [True] * len(shapes))[1])
    return partition(equation.invars, [moving and next(reads) for moving in moves])


def _has_tangent(atom: Any) -> bool:
    return not is_literal(atom) and jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def part(chain: TracedChain, kept: Mask, outputs: Mask, states: Leaves) -> TracedChain:
    """The chain of the leaves of the state that are ``kept``, and of some outputs.

    Its arrays may be any objects.

    Args:
        states: all leaves of ``z_0 .. z_{L-1}``. Those not kept become further inputs, if kept
            leaves or outputs depend on them. Or none, if these depend on no others.
    """
    step = chain.step
    also_read = _also_read(step, kept, outputs)
    return dataclasses.replace(
        chain,
        step=step_part(step, kept, outputs, also_read),
        layout=chain.layout.part(kept),
        initial=partition(chain.initial, kept),
        inputs=[*chain.inputs, *compress(states, also_read)],
        function=None,
        adapt=None,
    )


def _also_read(step: Step, kept: Mask, outputs: Mask) -> list[bool]:
    """The leaves of the state that are read, but not ``kept``."""
    program = step.jaxpr
    read = variables_read(program, partition(program.outvars, [*kept, *outputs]))
    return [not keeps and z in read for keeps, z in zip(kept, program.invars, strict=False)]


def step_part(step: Step, kept: Mask, outputs: Mask, also_read: Mask = ()) -> Step:
    """The step of `part`, which takes ``also_read`` leaves of the state as further inputs.

    Made once for a step, since what is known of a step is stored by step.
    """
    key = tuple(kept), tuple(outputs), tuple(also_read or [False] * step.states)
    return step.remember(("part", *key), partial(_step_part, step, *key))


def _step_part(step: Step, kept: Mask, outputs: Mask, also_read: Mask) -> Step:
    example = step.example
    # That of a loop which keeps values has not these outputs; it tells of examples alone.
    if example and len(example.jaxpr.outvars) == len(step.jaxpr.outvars):
        example = step_part(example, kept, outputs, also_read)
    program = _cut(step, kept, outputs, also_read)
    computed = set(results_of(program.eqns))
    return dataclasses.replace(
        step,
        jaxpr=program,
        states=sum(kept),
        state_tree=jax.tree.structure([0] * sum(kept)),
        output_tree=jax.tree.structure([0] * sum(outputs)),
        weak=tuple(partition(step.weak, [*kept, *outputs])),
        example=example,
        kept=tuple(pair for pair in step.kept if pair[0] in computed),
    )


def _cut(step: Step, kept: Mask, outputs: Mask, also_read: Mask) -> Program:
    """The program of the leaves that are ``kept``; it takes ``also_read`` after all inputs."""
    program = step.jaxpr
    states, inputs = program.invars[: step.states], program.invars[step.states :]
    program = program._replace(
        invars=[*partition(states, kept), *inputs, *partition(states, also_read)],
        outvars=partition(program.outvars, [*kept, *outputs]),
    )
    return program._replace(eqns=live_equations(program))
