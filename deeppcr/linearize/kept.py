"""Jacobians of narrow steps, from numbers kept by the convergence test before.

The convergence test applies the step to the states of an iterate, and the next iteration begins
with the derivatives at the same states. Both need the same activations. On a GPU the time of a
narrow chain is that of its kernels, so there the activations that the derivatives need are computed
together with the step, by one kernel, and kept. What the derivatives need of the inputs alone is
not kept, so no weights are copied.
"""

# jax 0.10.2, compiled for an H200: 2 of 19 kernels of an iteration less for layers of 8 units, 1 of
# 17 for a GRU of one unit, 3 of 27 for 16 units. A CPU would gain nothing, and hold more arrays.

import math
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.linear.blocks import Matrices
from deeppcr.linear.blocks.matrices import SMALL_ON_ACCELERATORS
from deeppcr.linearize.dense import Dense
from deeppcr.platforms import is_gpu
from deeppcr.rewrites.columns import columns
from depth.jaxprs import bind, entered, interpret, is_literal, moved_by

# Numbers to keep for each entry of a state, at most. A GRU keeps 9.
MOST = 16

Kept = tuple[Array, ...]


def keep_derivative(linearization: Any, chain: TracedChain, states: Array, value: Array) -> Kept:
    """What the derivatives of all steps at ``states: [L, *batch, w]`` need of them.

    ``value``: the step applied to the states, which is not in it. Empty if the derivatives are not
    to be kept, or need nothing.
    """
    is_narrow = chain.layout.width <= SMALL_ON_ACCELERATORS
    if not is_gpu() or not is_narrow or chain.step.has_custom_vjp:
        return ()
    if type(linearization) is not Dense:
        return ()
    found = Derivative.of(chain, states, value)
    if sum(math.prod(x.aval.shape) for x in found.wanted) > MOST * states.size:
        return ()
    return tuple(interpret(found.program, found.known, found.wanted, bind))


def kept_blocks(chain: TracedChain, states: Array, value: Array, kept: Kept) -> Matrices:
    """The Jacobians at ``states``, from what `keep_derivative` has returned for them."""
    found = Derivative.of(chain, states, value)
    known = found.known | dict(zip(found.wanted, kept, strict=True))
    arrays = interpret(found.program, known, found.program.outvars[1:], bind)
    return Matrices(jnp.moveaxis(columns(jax.tree.unflatten(found.tree, arrays), states), 0, -1))


class Derivative(NamedTuple):
    """The derivatives of all steps as a program of their states.

    Attributes:
        program: it returns the next states, and the arrays of a linear function.
        known: the values of its inputs and constants, and of the next states.
        wanted: the variables of the arrays that depend on the states, each once.
        tree: the structure of the linear function, a pytree.
    """

    program: Any
    known: dict[Any, Any]
    wanted: list[Any]
    tree: Any

    @classmethod
    def of(cls, chain: TracedChain, states: Array, value: Array) -> Self:
        """At ``states``; ``value``: the next states."""
        linearize = partial(jax.linearize, chain.evaluate)
        closed, (_, function) = jax.make_jaxpr(linearize, return_shape=True)(states)
        program, known = entered(closed, [states])
        after, *arrays = program.outvars
        moved = moved_by(program, program.invars)
        known |= {} if is_literal(after) else {after: value}
        wanted = [x for x in arrays if not is_literal(x) and x in moved and x not in known]
        return cls(program, known, list(dict.fromkeys(wanted)), jax.tree.structure(function))
