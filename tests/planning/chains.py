"""Chains to plan."""

import jax
import jax.numpy as jnp

import deeppcr
from tests.problems import gru, normal

L = 16
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
