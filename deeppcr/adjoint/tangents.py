"""What is differentiated, and the tangents of a step as one program.

`Moves` says which leaves of a chain are differentiated.

    t_l, o_l = T (t_{l-1}, dx_l, dc)

are the tangents of the next state and of the outputs. Its transpose gives the cotangents of the
state before, of the input and of the arrays that all steps share.

It is also two programs. What the last two operands add, ``u_l``, enters it at a few places: for a
recurrent cell at its gates. So ``u_l = G (dx_l, dc)`` is computed for all steps at once, and
``t_l, o_l = F (t_{l-1}, u_l)`` in a loop. Their transposes are a loop, which finds the cotangents
of all ``u_l`` on its way, and then one product for the gradients of all arrays.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from deeppcr.arrays import Leaves, abstract_avals, combine, partition
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.part import part
from deeppcr.chain.step import Step
from deeppcr.chain.trace import on_no_mesh
from deeppcr.lower import as_products, bounded, own_filters
from deeppcr.programs.cut_first import evaluate, opened
from deeppcr.programs.dependence import defining
from deeppcr.programs.retrace import with_literals
from depth.jaxprs import (
    Program,
    bind,
    called,
    constants_of,
    interpret,
    is_literal,
    moved_by,
    producers,
    read_by,
)
from depth.primitives import primitive


def pullback(f: Callable[..., Leaves], *primals: Leaves) -> Callable[[Leaves], tuple[Leaves, ...]]:
    """``lam -> J^T lam`` for the derivative J of ``f``, a part for each of the primals.

    `jax.vjp`, which linearises equation by equation, takes twice as long to trace (jax 0.10, 0.12).
    """
    return jax.linear_transpose(lambda *t: jax.jvp(f, primals, t)[1], *primals)


def moving(leaves: Leaves, tangents: Sequence[Any]) -> tuple[list[bool], Leaves]:
    """Which leaves have tangents, as jax passes them to a rule, and these."""
    mask = [
        not isinstance(t, SymbolicZero | ad.Zero) and getattr(t, "dtype", None) != jax.dtypes.float0
        for t in tangents
    ]
    pairs = zip(partition(leaves, mask), partition(tangents, mask), strict=True)
    # Under jit a tangent may be a number, or weakly typed.
    return mask, [jnp.asarray(t, x.dtype) for x, t in pairs]


Tangents = tuple[Leaves, Leaves, Leaves]  # of the initial state, the inputs, captured arrays


def parts(chain: TracedChain) -> tuple[Leaves, Leaves, Leaves]:
    """The leaves of a chain: the initial state, the inputs, captured arrays."""
    return chain.initial, chain.inputs, chain.captured


class Moves(NamedTuple):
    """Which leaves of a chain are differentiated: the ``v`` of the linear system."""

    initial: Sequence[bool]
    inputs: Sequence[bool]
    captured: Sequence[bool]

    def results(self, step: Step) -> list[bool]:
        """Which leaves of the states, and which outputs, depend on these leaves."""
        program, moves = step.jaxpr, list(self.initial)
        variables = [*program.invars, *program.constvars]
        while True:
            inputs = partition(variables, [*moves, *self.inputs, *self.captured])
            dependent = moved_by(program, inputs)
            results = [not is_literal(y) and y in dependent for y in program.outvars]
            more = list(map(operator.or_, moves, results))
            if more == moves:
                return [*moves, *results[step.states :]]
            moves = more

    def of_part(self, leaves: Sequence[bool], more: int) -> Self:
        """Those of some leaves of the state, the others being ``more`` inputs."""
        return self._replace(
            initial=partition(self.initial, leaves), inputs=[*self.inputs, *[False] * more]
        )

    def left(self, leaves: Sequence[bool]) -> tuple[list[bool], list[bool], list[bool]]:
        """Which tangents are left with these leaves of the state."""
        left = partition(leaves, self.initial)
        return left, [True] * sum(self.inputs), [True] * sum(self.captured)

    def of(self, chain: TracedChain) -> Tangents:
        """``(z_0, x, c)``, the differentiated leaves of a chain."""
        z, x, c = map(partition, parts(chain), self)
        return z, x, c

    def put(self, chain: TracedChain, x: Leaves, c: Leaves) -> TracedChain:
        """The chain, with its differentiated leaves replaced by ``x`` and ``c``."""
        inputs, captured = map(combine, parts(chain)[1:], self[1:], (x, c))
        return dataclasses.replace(chain, inputs=inputs, captured=captured)

    def enter(self, like: Leaves, dz: Leaves) -> Leaves:
        """The tangent of the initial state: ``dz``, and zero for other leaves."""
        return combine(list(map(jnp.zeros_like, like)), self.initial, dz)


class TangentEquations(NamedTuple):
    """The tangent equations of a chain.

    Attributes:
        moves: what is differentiated.
        chain: with its arrays.
        states: ``z_0 .. z_{L-1}``.
        adjoint: how they are solved.
    """

    moves: Moves
    chain: TracedChain
    states: Leaves
    adjoint: Any

    @property
    def initial(self) -> Leaves:
        """Zeros, shaped like the initial state."""
        return [jnp.zeros_like(z, shape=z.shape[1:]) for z in self.states]

    def part(self, leaves: Sequence[bool], outputs: Sequence[bool]) -> Self:
        """Those of some leaves of the state, and of some outputs."""
        chain = part(self.chain, leaves, outputs, self.states)
        moves = self.moves.of_part(leaves, len(chain.inputs) - len(self.chain.inputs))
        return self._replace(moves=moves, chain=chain, states=partition(self.states, leaves))


Values = Mapping[Any, Any]  # of variables


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
        sources: for each value that is kept, its equation and variable; None if it has none.
        between: the variables ``u`` of the two programs, F and G. None if an equation reads the
            tangent of a captured array with one of a state, as an inner loop does: its cotangent
            would be one array for each step.
        convolutions: the results in G of those with filters of their own in each step.
    """

    step: Step
    program: Program
    variables: _Variables
    sources: Sequence[tuple[Any, Any] | None]
    between: Any
    convolutions: frozenset[Any]

    @classmethod
    def of(cls, step: Step, moves: Moves, in_halves: bool) -> Self:
        """Of a step, of which these leaves move; traced once."""
        key = "tangents", tuple(moves.inputs), tuple(moves.captured), in_halves
        with on_no_mesh():
            traced: Self = step.remember(key, partial(_traced, step, moves, in_halves))
        return traced

    def primals(self, state: Leaves, inputs: Leaves, captured: Leaves) -> Values:
        """The values of the variables that are no tangents."""
        pairs = zip(self.variables.primals, (*state, *inputs, *captured), strict=True)
        values = zip(self.sources, self.step.kept_of(inputs), strict=True)
        kept = {source[1]: bounded(value, source[0]) for source, value in values if source}
        return dict(pairs) | kept

    def push(self, primals: Values, t: Leaves, dx: Leaves, dc: Leaves) -> tuple[Leaves, Leaves]:
        """``T (t, dx, dc)``."""
        variables = *self.variables.t, *self.variables.dx, *self.variables.dc
        return self._results(primals, variables, (*t, *dx, *dc))

    def pull(self, primals: Values, t: Leaves, o: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """``T^T (t, o)``, the cotangents of ``t``, ``dx`` and ``dc``."""
        return jax.linear_transpose(
            partial(self.push, primals), *map(abstract_avals, self.variables[1:])
        )((t, o))

    def pull_first(self, primals: Values, t: Leaves, o: Leaves) -> tuple[Leaves, Leaves]:
        """``F^T (t, o)``, the cotangents of ``t`` and ``u``."""
        variables = *self.variables.t, *self.between
        return jax.linear_transpose(
            lambda t, u: self._results(primals, variables, (*t, *u)),
            abstract_avals(self.variables.t),
            abstract_avals(self.between),
        )((t, o))

    def pull_last(
        self, chain: TracedChain, states: Leaves
    ) -> Callable[[Leaves], tuple[Leaves, Leaves]]:
        """``G^T`` of all steps: from the cotangents of ``u`` those of ``dx`` and ``dc``."""
        variables = *self.variables.dx, *self.variables.dc
        rule = partial(bind, replace=as_products(self.convolutions))

        def one(z: Leaves, x: Leaves, dx: Leaves, c: Leaves, dc: Leaves) -> Leaves:
            values = {**self.primals(z, x, c), **dict(zip(variables, (*dx, *dc), strict=True))}
            return interpret(self.program, values, self.between, rule)

        all_steps = chain.axis.each(jax.vmap(one, in_axes=(0, 0, 0, None, None)), 3)
        of_x = [x.update(shape=(chain.length, *x.shape)) for x in abstract_avals(self.variables.dx)]
        return jax.linear_transpose(
            lambda dx, dc: all_steps(states, chain.inputs, dx, chain.captured, dc),
            of_x,
            abstract_avals(self.variables.dc),
        )

    def _results(
        self, primals: Values, variables: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Leaves, Leaves]:
        values = {**primals, **dict(zip(variables, tangents, strict=True))}
        results = interpret(self.program, values, self.program.outvars, bind)
        return results[: self.step.states], results[self.step.states :]


def _traced(step: Step, moves: Moves, in_halves: bool) -> Any:
    """See `StepTangents.of`."""
    program, states = step.evaluated, step.states
    variables = program.invars[:states], program.invars[states:], program.constvars
    z, x, c = map(abstract_avals, variables)
    count = len(program.outvars)
    outvars = [*program.outvars, *(value for value, _ in step.kept)]

    def tangents(z: Leaves, x: Leaves, c: Leaves, *t: Leaves) -> tuple[Leaves, Leaves]:
        def run(z: Leaves, dx: Leaves, dc: Leaves) -> tuple[Leaves, Leaves]:
            leaves = *combine(c, moves.captured, dc), *z, *combine(x, moves.inputs, dx)
            results = evaluate(program, program.environment(leaves), outvars)
            return results[:count], results[count:]

        primals = z, partition(x, moves.inputs), partition(c, moves.captured)
        return jax.jvp(run, primals, t, has_aux=True)[1:]

    moving = z, partition(x, moves.inputs), partition(c, moves.captured)
    closed = jax.make_jaxpr(tangents)(z, x, c, *moving)
    whole = with_literals(Program.of(closed), constants_of(closed))
    if in_halves and any(called(x) is not None for x in whole.eqns):
        whole = opened(whole, with_checkpoints=True)
    tree = jax.tree.structure(([*z, *x, *c], *moving))
    operands = _Variables(*jax.tree.unflatten(tree, whole.invars))
    values = whole.outvars[count:]
    whole = whole._replace(outvars=whole.outvars[:count])
    equations = producers(whole) if values else {}
    sources = [None if is_literal(y) or y not in equations else (equations[y], y) for y in values]
    between = _between(whole, operands) if in_halves else None
    shared = {*operands.primals[len(z) + len(x) :], *operands.dc}
    filters = own_filters(whole._replace(outvars=between), shared) if between else frozenset()
    return StepTangents(step, whole, operands, sources, between, filters)


def _between(program: Program, variables: _Variables) -> list[Any] | None:
    """See `StepTangents`."""
    by_state = moved_by(program, variables.t)
    by_rest = moved_by(program, [*variables.dx, *variables.dc]) - by_state
    loop = defining(program, by_state)
    if any(map(partial(_reads_whole, arrays=variables.dc), loop)):
        return None
    return list(filter(by_rest.__contains__, read_by(loop, program.outvars)))


def _reads_whole(equation: Any, arrays: Sequence[Any]) -> bool:
    """Whether an equation reads one of these arrays, and does not add it to others."""
    reads = any(not is_literal(x) and x in arrays for x in equation.invars)
    return reads and primitive(equation).kind != "elementwise"
