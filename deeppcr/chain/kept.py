"""What a loop keeps of each step for its derivative, besides the states.

The derivative of a step reads values that the step has computed: of a recurrent cell its gates.
They are kept where computing them again takes longer than to read them, as products, reductions and
transcendental functions do. What follows from them by arithmetic is computed again, for many steps
at once. A step with kept values has them as outputs in the loop, and as inputs in the derivative.

A number that is computed again may be rounded otherwise. So none is compared with a kept one that
follows from it, as the derivative of a largest entry does.
"""

# Value and gradient of GRU, LSTM, layer norm and tanh, 4 to 512 units, batches of 1 to 64, 2 cores:
# 0.6 to 1.0 of the time that computing everything again takes (jax 0.12.0).

import dataclasses
from collections.abc import Collection, Mapping
from itertools import filterfalse
from typing import Any, NamedTuple

import jax

from deeppcr.arrays import Leaves, abstract_avals, combine, floating, partition
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.chain.trace import on_no_mesh
from deeppcr.programs.cut_first import opened
from deeppcr.programs.dependence import results_of, work_of_products
from depth.counts import nbytes
from depth.jaxprs import (
    Program,
    bind,
    interpret,
    is_literal,
    live_equations,
    moved_by,
    names,
    needed,
    read_by,
)
from depth.primitives import primitive

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
FEWER = 2  # times the bytes of a value are those from which it follows, if it is kept instead

# Bytes of all steps from which on values are kept only if computing each of their bytes again takes
# so many operations of products. The C library returns larger arrays to the system, and each of
# their pages costs time again: GRU, 16 units, batch 8, L = 10000, 34 MB: 1.5 times the time of 15.
MOST_KEPT, PER_BYTE = 3 << 23, 64


class Kept(NamedTuple):
    """A step whose loop keeps values for its derivative.

    Attributes:
        forward: the step of the loop; its last outputs are the values.
        derivative: the step of the derivative; its last inputs are the values.
    """

    forward: Step
    derivative: Step

    def split(self, chain: TracedChain, run: Any) -> tuple[TracedChain, Any]:
        """The chain of the derivative, and the run of the loop without the values."""
        count = len(run.outputs) - len(self.derivative.kept)
        chain = dataclasses.replace(
            chain, step=self.derivative, inputs=[*chain.inputs, *run.outputs[count:]]
        )
        return chain, dataclasses.replace(run, outputs=run.outputs[:count])

    @property
    def sizes(self) -> list[int]:
        """The bytes of each value that is none of the next state, which is kept anyway."""
        after = self.forward.jaxpr.outvars[: self.forward.states]
        return [nbytes(value) for value, _ in self.derivative.kept if value not in after]


def keeping(chain: TracedChain) -> Kept | None:
    """The step with what its derivative keeps; None if that is nothing. Found once for a step."""
    step = chain.step
    if step.not_differentiable or step.forwards_only:
        return None
    if "kept" not in step.memory:
        with on_no_mesh():
            step.memory["kept"] = _kept(step, opened(step.jaxpr))
    kept: Kept = step.memory["kept"]
    values = sum(kept.sizes)
    is_small = chain.length * (step.state_bytes + values) <= MOST_KEPT
    is_worth = is_small or work_of_products(step.jaxpr) >= PER_BYTE * values
    return kept if is_worth and kept.derivative.kept else None


def _kept(step: Step, program: Program) -> Kept:
    """See `keeping`; ``program``: of the step, with calls opened."""
    values = _chosen(program, step.states)
    count = len(program.outvars) - step.states + len(values)
    forward = dataclasses.replace(
        step,
        jaxpr=program._replace(outvars=[*program.outvars, *values]),
        output_tree=jax.tree.structure([0] * count),
        weak=(*step.weak, *[False] * len(values)),
    )
    inputs = [type(value)(value.aval) for value in values]
    derivative = dataclasses.replace(
        step,
        jaxpr=program._replace(invars=[*program.invars, *inputs]),
        kept=tuple(zip(values, inputs, strict=True)),
    )
    return Kept(forward, derivative)


def _chosen(program: Program, states: int) -> list[Any]:
    """The variables of a step that are kept.

    From what the tangents of a step read, its equations are followed back to what is there anyway:
    states, inputs, constants, and what follows from the last two, which is computed at once.
    """
    following = moved_by(program, program.invars[:states])
    results = filter(following.__contains__, results_of(program.eqns))
    keys = jax.dtypes.extended
    of_state = [y for y in results if not jax.dtypes.issubdtype(y.aval.dtype, keys)]
    tangents, values = _tangents(program, states, of_state)
    variables = dict(zip(values.values(), values, strict=True))
    next_state = set(filterfalse(is_literal, program.outvars[:states]))
    after = {values[y] for y in next_state if y in values}
    by_state = moved_by(tangents, tangents.invars[:states])
    candidates = set(variables)
    # Those that compare numbers, or that contain one which does.
    compared = [x for x in tangents.eqns if COMPARISONS & names(tangents._replace(eqns=[x]))]
    while True:
        sources = _sources(tangents, candidates, by_state, after)
        unequal = [_unequal(tangents, each, sources, by_state) for each in compared]
        if not any(unequal):
            break
        candidates.difference_update(*unequal)
    primals = len(program.invars) + len(program.constvars)
    kept = _together(sources, _read(tangents, primals, variables))
    return [variables[value] for value in results_of(tangents.eqns) if value in kept]


def _sources(
    tangents: Program, candidates: Collection[Any], by_state: Collection[Any], after: set[Any]
) -> dict[Any, frozenset[Any]]:
    """The values to keep, from which to compute each that depends on a state: perhaps itself.

    Of ``candidates``; those of the next state, ``after``, are kept anyway.
    """
    sources: dict[Any, frozenset[Any]] = {}
    for equation in tangents.eqns:
        below = _together(sources, read_by([equation]))
        bytes_below = sum(map(nbytes, below - after))
        for value in filter(by_state.__contains__, equation.outvars):
            is_kept = value in candidates and (
                value in after or not _is_cheap(equation) or FEWER * nbytes(value) <= bytes_below
            )
            sources[value] = frozenset([value]) if is_kept else below
    return sources


def _together(sources: Mapping[Any, frozenset[Any]], variables: Collection[Any]) -> frozenset[Any]:
    """The values to keep, from which to compute all of these variables."""
    values = [sources[x] for x in variables if x in sources]
    return frozenset[Any]().union(*values)


def _is_cheap(equation: Any) -> bool:
    """Whether to compute it again takes less time than to read it."""
    entry = primitive(equation)
    return entry.kind == "move" or (entry.kind == "elementwise" and not entry.transcendental)


def _unequal(
    tangents: Program,
    equation: Any,
    sources: Mapping[Any, frozenset[Any]],
    by_state: Collection[Any],
) -> frozenset[Any]:
    """The kept values that follow from what is computed again for the operands of an equation."""
    operands = list(read_by([equation]))
    kept = _together(sources, operands)
    computed = filter(by_state.__contains__, results_of(needed(tangents, kept, operands)))
    return kept & moved_by(tangents, list(computed))


def _read(tangents: Program, primals: int, values: Collection[Any]) -> set[Any]:
    """What the equations of tangents read besides tangents; ``values`` are none of these."""
    moving = set(tangents.invars[primals:])
    variables = set[Any]()
    for equation in tangents.eqns:
        atoms = set(filterfalse(is_literal, equation.invars))
        if moving & atoms:
            moving.update(filterfalse(values.__contains__, equation.outvars))
            variables |= atoms - moving
    return variables


def _tangents(
    program: Program, states: int, of_state: list[Any]
) -> tuple[Program, Mapping[Any, Any]]:
    """The program of the tangents of a step, and there the variables of what depends on a state.

    It is of ``(*state, *input, *constants, *tangents) -> tangents``, of the states alone: what
    those of inputs and constants read follows from the same values.
    """
    variables = [*program.invars, *program.constvars]
    moves = [*floating(variables[:states]), *[False] * (len(variables) - states)]
    ends = floating(program.outvars)

    def run(primals: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        def step(*moving: Any) -> tuple[Leaves, Leaves]:
            values_of = dict(zip(variables, combine(primals, moves, moving), strict=True))
            results = interpret(program, values_of, [*program.outvars, *of_state], bind)
            return partition(results[: len(ends)], ends), results[len(ends) :]

        _, t, values = jax.jvp(step, partition(primals, moves), tangents, has_aux=True)
        return t, values

    avals = abstract_avals(variables)
    both = Program.of(jax.make_jaxpr(run)(avals, partition(avals, moves)))
    count = sum(ends)
    tangents = both._replace(outvars=both.outvars[:count])
    tangents = tangents._replace(eqns=live_equations(tangents))
    computed = set(results_of(tangents.eqns))
    pairs = zip(of_state, both.outvars[count:], strict=True)
    return tangents, {y: value for y, value in pairs if not is_literal(value) and value in computed}
