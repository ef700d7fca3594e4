"""Which leaves of a chain are differentiated, and their tangents and cotangents."""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from deeppcr.arrays.state import Leaves, combine, partition
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.part import part
from deeppcr.chain.step import Step
from depth.jaxprs import is_literal, moved_by


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
