"""Chains to plan, and a device on which short ones pay off."""

from functools import cache

import jax
import jax.numpy as jnp

import deeppcr
import depth
from deeppcr._plan import ChainCosts
from deeppcr.chain import chain_length, trace_chain
from tests.problems import gru, normal

L = 16
SLOW_LOOPS = depth.devices["H200"].replace(
    name="slow loops", loop_latency=1e-3
)  # on which Newton pays off from a few steps on
WEIGHTS = (normal(0, 3, 9, scale=0.6), normal(1, 2, 9), normal(2, 9))


def gated(z, x):
    return gru(WEIGHTS, z, x)[0]


def elementwise(z, x):
    return jnp.tanh(0.5 * z + x)


CHAINS = {
    "elementwise": (deeppcr.Chain(elementwise, normal(0, L, 4)), normal(1, 4)),
    "gru": (deeppcr.Chain(gated, normal(0, L, 2)), normal(1, 3)),
}


def like(width=64, length=4096, dtype="float32", step=elementwise):
    """A chain, and its initial state, of which only the shapes matter."""
    return deeppcr.Chain(step, jnp.zeros((length, width), dtype)), jax.ShapeDtypeStruct(
        (width,), dtype
    )


@cache
def plan_like(*shape, device="H200", **options):
    """The plan of such a chain, made once."""
    return deeppcr.plan(*like(*shape), device=device, **options)


def costs_of(chain, state, batch_ndim=0):
    """Its costs, from a trace of its own."""
    found = []

    def trace(state, inputs):
        length = chain_length(inputs, chain.length, "inputs")
        found.append(
            ChainCosts.of(
                trace_chain(
                    lambda z, x: (chain.step(z, x), None), state, inputs, length, batch_ndim, "z0"
                )
            )
        )

    jax.eval_shape(trace, state, chain.inputs)
    return found[0]
