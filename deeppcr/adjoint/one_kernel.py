"""The adjoint states by one kernel of a GPU, where the step has one.

Backpropagation is a linear recurrence, ``mu_l = A_l^T (g_l + mu_{l+1})``. Newton's method solves it
in one iteration, with ``A_l`` in registers, and another iteration tells the residual.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.arrays.avals import of_step
from deeppcr.arrays.state import Leaves, add
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.lower import CannotFuse, SolvedBelow, fused_solve, kernels_run
from depth.jaxprs import Program

# One iteration, and some more if products of Jacobians lose digits.
LINEAR = SolvedBelow(iterations=4, standing=0.0, update=math.inf)


def pulled(
    chain: TracedChain,
    states: Leaves,
    g: Leaves,
    enter: Leaves,
    otherwise: Callable[[], tuple[Leaves, Leaves]],
) -> tuple[Leaves, Leaves]:
    """See `AdjointSolver.backward`; ``otherwise`` is the same without a kernel."""
    if not kernels_run() or chain.axis != LOCAL:
        return otherwise()
    axis, inputs = chain.axis.reversed, [*states, *chain.inputs, *g]
    parts = len(enter), len(states), len(chain.inputs), len(g)

    def leaves(*_: Array) -> Leaves:
        lam = otherwise()[0]
        none = jnp.int32(0), jnp.int32(chain.length), jnp.zeros((), chain.layout.dtype)
        return [*jax.vjp(chain, states)[1](lam)[0], *none]

    def step(*leaves: Array) -> Leaves:
        rest, split = list(leaves), []
        for count in parts:
            split.append(rest[:count])
            rest = rest[count:]
        mu, z, x, g_l = split
        (found,) = jax.vjp(lambda z: chain.step(z, x, rest), z)[1](add(g_l, mu))
        return found

    each = [*enter, *map(of_step, inputs), *chain.captured]
    closed = jax.make_jaxpr(step)(*each)
    program, given = Program.of(closed), len(enter) + len(inputs)
    captured = [*chain.captured, *getattr(closed, "consts", ())]
    constvars = [*program.invars[given:], *program.constvars]
    program = program._replace(invars=program.invars[:given], constvars=constvars)

    try:
        *mu, _, _, _ = fused_solve(
            program,
            chain.layout.batch_shape,
            LINEAR,
            chain.length,
            True,
            leaves,
            enter,
            inputs,
            captured,
        )
    except CannotFuse:
        return otherwise()
    lam = [axis.before(end, rest) for end, rest in zip(enter, mu, strict=True)]
    return add(g, lam), [z[0] for z in mu]
