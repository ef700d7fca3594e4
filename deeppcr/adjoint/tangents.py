"""The tangents of a step, as one program.

    t_l, o_l = T (t_{l-1}, dx_l, dc)

are the tangents of the next state and of the outputs. Its transpose gives the cotangents of the
state before, of the input and of the arrays that all steps share.

It is also two programs. What the last two operands add, ``u_l``, enters it at a few places: for a
recurrent cell at its gates. So ``u_l = G (dx_l, dc)`` is computed for all steps at once, and
``t_l, o_l = F (t_{l-1}, u_l)`` in a loop. Their transposes are a loop, which finds the cotangents
of all ``u_l`` on its way, and then one product for the gradients of all arrays.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import jax

from deeppcr.adjoint.moves import Moves
from deeppcr.arrays.avals import abstract
from deeppcr.arrays.state import Leaves, combine, partition
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.chain.trace import on_no_mesh
from deeppcr.lower import as_products, bounded, own_filters
from deeppcr.programs.cut_first import evaluate, opened
from deeppcr.programs.retrace import with_literals
from depth.jaxprs import (
    Program,
    bind,
    called,
    constants_of,
    interpret,
    is_literal,
    moved_by,
    read_by,
)
from depth.primitives import primitive

_FOUND: WeakKeyDictionary[Step, dict[Any, "StepTangents"]] = WeakKeyDictionary()

Known = Mapping[Any, Any]  # values of variables


class _Variables(NamedTuple):
    """Those of the program: primal ones, and tangents."""

    primals: Sequence[Any]
    t: Sequence[Any]
    dx: Sequence[Any]
    dc: Sequence[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class StepTangents:
    """The program of the tangents of a step.

    Attributes:
        step: the step.
        program: of primals and tangents; its results are the tangents of the next state, and those
            of the outputs.
        variables: of the program.
        kept: for each value that is kept, its equation and variable; None if it has none.
        between: the variables ``u`` of the two programs, F and G. None if an equation reads the
            tangent of a captured array with one of a state, as an inner loop does: its cotangent
            would be one array for each step.
        own: the results of convolutions in G with filters of their own in each step.
    """

    step: Step
    program: Program
    variables: _Variables
    kept: Sequence[tuple[Any, Any] | None]
    between: Any
    own: frozenset[Any]

    @classmethod
    def of(cls, step: Step, moves: Moves, in_halves: bool) -> Self:
        """Of a step, of which these leaves move; found once."""
        found = _FOUND.setdefault(step, {})
        masks = tuple(moves.inputs), tuple(moves.captured), in_halves
        if masks not in found:
            with on_no_mesh():
                found[masks] = _traced(step, moves, in_halves)
        return found[masks]  # type: ignore[return-value]

    def known(self, state: Leaves, inputs: Leaves, captured: Leaves) -> Known:
        """The values of the variables that are no tangents."""
        primals = zip(self.variables.primals, (*state, *inputs, *captured), strict=True)
        values = zip(self.kept, self.step.kept_of(inputs), strict=True)
        kept = {made[1]: bounded(value, made[0]) for made, value in values if made}
        return dict(primals) | kept

    def push(self, known: Known, t: Leaves, dx: Leaves, dc: Leaves) -> tuple[Leaves, Leaves]:
        """``T (t, dx, dc)``."""
        variables = *self.variables.t, *self.variables.dx, *self.variables.dc
        return self._results(known, variables, (*t, *dx, *dc))

    def pull(self, known: Known, t: Leaves, o: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """``T^T (t, o)``, the cotangents of ``t``, ``dx`` and ``dc``."""
        return jax.linear_transpose(partial(self.push, known), *map(_types, self.variables[1:]))(
            (t, o)
        )

    def pull_first(self, known: Known, t: Leaves, o: Leaves) -> tuple[Leaves, Leaves]:
        """``F^T (t, o)``, the cotangents of ``t`` and ``u``."""

        def carried(t: Leaves, u: Leaves) -> tuple[Leaves, Leaves]:
            return self._results(known, (*self.variables.t, *self.between), (*t, *u))

        shapes = _types(self.variables.t), _types(self.between)
        return jax.linear_transpose(carried, *shapes)((t, o))

    def pull_last(
        self, chain: TracedChain, states: Leaves
    ) -> Callable[[Leaves], tuple[Leaves, Leaves]]:
        """``G^T`` of all steps: from the cotangents of ``u`` those of ``dx`` and ``dc``."""
        variables = *self.variables.dx, *self.variables.dc
        rule = partial(bind, replace=as_products(self.own))

        def one(z: Leaves, x: Leaves, dx: Leaves, c: Leaves, dc: Leaves) -> Leaves:
            known = {**self.known(z, x, c), **dict(zip(variables, (*dx, *dc), strict=True))}
            return interpret(self.program, known, self.between, rule)

        every = chain.axis.each(jax.vmap(one, in_axes=(0, 0, 0, None, None)), 3)

        def drive(dx: Leaves, dc: Leaves) -> Leaves:
            return every(states, chain.inputs, dx, chain.captured, dc)

        of_x = [x.update(shape=(chain.length, *x.shape)) for x in _types(self.variables.dx)]
        return jax.linear_transpose(drive, of_x, _types(self.variables.dc))

    def _results(
        self, known: Known, variables: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Leaves, Leaves]:
        values = {**known, **dict(zip(variables, tangents, strict=True))}
        found = interpret(self.program, values, self.program.outvars, bind)
        return found[: self.step.states], found[self.step.states :]


def _types(variables: Sequence[Any]) -> list[Any]:
    return [abstract(variable.aval) for variable in variables]


def _traced(step: Step, moves: Moves, in_halves: bool) -> StepTangents:
    program, states = step.evaluated, step.states
    variables = program.invars[:states], program.invars[states:], program.constvars
    z, x, c = map(_types, variables)
    wanted = [*program.outvars, *(value for value, _ in step.kept)]

    def tangents(z: Leaves, x: Leaves, c: Leaves, *t: Leaves) -> tuple[Leaves, Leaves]:
        def run(z: Leaves, dx: Leaves, dc: Leaves) -> tuple[Leaves, Leaves]:
            leaves = *z, *combine(x, moves.inputs, dx), *combine(c, moves.captured, dc)
            known = dict(zip((*program.invars, *program.constvars), leaves, strict=True))
            found = evaluate(program, known, wanted)
            return found[: len(program.outvars)], found[len(program.outvars) :]

        primals = z, partition(x, moves.inputs), partition(c, moves.captured)
        return jax.jvp(run, primals, t, has_aux=True)[1:]

    moving = z, partition(x, moves.inputs), partition(c, moves.captured)
    closed = jax.make_jaxpr(tangents)(z, x, c, *moving)
    found = with_literals(Program.of(closed), constants_of(closed))
    if in_halves and any(called(each) is not None for each in found.eqns):
        found = opened(found, with_checkpoints=True)
    rest, counts = iter(found.invars), (len(z) + len(x) + len(c), *map(len, moving))
    operands = _Variables(*([next(rest) for _ in range(count)] for count in counts))
    values = found.outvars[len(program.outvars) :]
    found = found._replace(outvars=found.outvars[: len(program.outvars)])
    made = {y: each for each in found.eqns for y in each.outvars} if values else {}
    kept = [None if is_literal(y) or y not in made else (made[y], y) for y in values]
    between = _between(found, operands) if in_halves else None
    shared = {*operands.primals[len(z) + len(x) :], *operands.dc}
    own = own_filters(found._replace(outvars=between), shared) if between else frozenset()
    return StepTangents(step, found, operands, kept, between, own)


def _between(program: Program, variables: _Variables) -> list[Any] | None:
    """See `StepTangents`."""
    by_state = moved_by(program, variables.t)
    by_rest = moved_by(program, [*variables.dx, *variables.dc]) - by_state
    loop = [each for each in program.eqns if not by_state.isdisjoint(each.outvars)]
    if any(_reads_whole(each, variables.dc) for each in loop):
        return None
    return [x for x in read_by(loop, program.outvars) if x in by_rest]


def _reads_whole(equation: Any, arrays: Sequence[Any]) -> bool:
    """Whether an equation reads one of these arrays, and does not add it to others."""
    reads = any(not is_literal(x) and x in arrays for x in equation.invars)
    return reads and primitive(equation).kind != "elementwise"
