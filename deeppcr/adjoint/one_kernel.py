"""The adjoint states by one kernel of a GPU, where the step has one.

Backpropagation is a linear recurrence, ``mu_l = A_l^T (g_l + mu_{l+1})``. A kernel computes it step
by step, or in windows by Newton's method: in one iteration, with ``A_l`` in registers; another one
tells the residual.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.adjoint.tangents import pullback
from deeppcr.arrays import Leaves, add, of_step
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.lower import (
    CannotFuse,
    FusedSolve,
    FusedStep,
    SolvedBelow,
    fused_scan,
    fused_solve,
    kernels_run,
)
from depth.jaxprs import Program, constants_of

# One iteration, and some more if products of Jacobians lose digits.
LINEAR_SOLVE = SolvedBelow(iterations=4, standing=0.0, update=math.inf)
Pulled = tuple[Leaves, Leaves]  # what `AdjointSolver.backward` returns


class _Recurrence(NamedTuple):
    """The recurrence of a chain, from the last step to the first.

    Attributes:
        chain: whose adjoint it is.
        g: the cotangents of the states.
        enter: ``mu`` after the last step.
        program: of a step, ``(*mu, *state, *input, *g) -> mu``; its constants are ``captured``.
        inputs: the arrays of all steps.
        captured: those that are the same in all steps.
    """

    chain: TracedChain
    g: Leaves
    enter: Leaves
    program: Program
    inputs: Leaves
    captured: Leaves

    @classmethod
    def of(cls, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves) -> Self:
        """That of a chain with these states, before its steps."""
        inputs = [*states, *chain.inputs, *g]
        count = len(enter) + len(inputs)

        def step(mu: Leaves, z: Leaves, x: Leaves, g_l: Leaves, captured: Leaves) -> Leaves:
            at = partial(chain.step, inputs=x, captured=captured)
            return pullback(at, z)(add(g_l, mu))[0]

        of_one = jax.tree.map(of_step, (states, chain.inputs, g))
        closed = jax.make_jaxpr(step)(enter, *of_one, chain.captured)
        program = Program.of(closed)
        constvars = [*program.invars[count:], *program.constvars]
        program = program._replace(invars=program.invars[:count], constvars=constvars)
        captured = [*chain.captured, *constants_of(closed)]
        return cls(chain, g, enter, program, inputs, captured)

    @property
    def step(self) -> FusedStep:
        """A step, for a kernel.

        Raises:
            CannotFuse: there is none; the message says why.
        """
        shape = self.chain.layout.batch_shape
        return FusedStep.of(self.program, len(self.enter), shape)

    def pulled(self, mu: Leaves) -> Pulled:
        """The adjoint states, and what the first step passes on, from ``mu`` of all steps."""
        axis = self.chain.axis.reversed
        lam = list(starmap(axis.before, zip(self.enter, mu, strict=True)))
        return add(self.g, lam), [z[0] for z in mu]


def by_kernel(
    run: Callable[[_Recurrence], Leaves],
    chain: TracedChain,
    states: Leaves,
    g: Leaves,
    enter: Leaves,
) -> Pulled | None:
    """See `AdjointSolver.backward`; None if no kernel runs.

    ``run``: `by_steps`, or `by_windows` of what solves the chain otherwise.
    """
    has_steps = isinstance(chain.length, int) and chain.length > 0  # it may be symbolic
    if not (kernels_run() and chain.axis == LOCAL and has_steps):
        return None
    system = _Recurrence.of(chain, states, g, enter)
    try:
        return system.pulled(run(system))
    except CannotFuse:
        return None


def by_steps(system: _Recurrence) -> Leaves:
    """``mu`` of all steps, one after another."""
    return fused_scan(
        system.step,
        system.enter,
        system.inputs,
        system.captured,
        True,
        system.chain.length,
    )[1]


def by_windows(otherwise: Callable[[], Pulled], system: _Recurrence) -> Leaves:
    """``mu`` of all steps, those of a window at once."""
    chain, count = system.chain, len(system.enter)
    solve = FusedSolve(system.step, chain.length, True, LINEAR_SOLVE)

    def leaves(*_: Array) -> Leaves:
        at = pullback(chain, system.inputs[:count])
        mu: Leaves = at(otherwise()[0])[0]
        none = jnp.int32(0), jnp.int32(chain.length), jnp.zeros((), chain.layout.dtype)
        return [*mu, *none]

    return fused_solve(solve, leaves, system.enter, system.inputs, system.captured)[:count]
