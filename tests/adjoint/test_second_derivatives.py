"""Derivatives of derivatives where the step is affine, so that parts of the linear system do not depend on what is moved."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.problems import assert_agree

STEPS = {
    "z -> az + b": lambda z, x: (0.5 * z + 0.3, None),
    "z -> az + x": lambda z, x: (0.5 * z + x, z),
    "z -> xz": lambda z, x: (x * z, z),
    "z -> x": lambda z, x: (jnp.sin(x) + 0 * z, z),
}
WAYS = [
    {"method": "newton"},
    {"adjoint": "backprop"},
    {"adjoint": "pcr"},
    {"adjoint": deeppcr.Adjoint("zero")},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_gradient_of_a_gradient(step, way):
    def value(scan, z, xs):
        last, ys = scan(STEPS[step], z, xs)
        return last**2 + sum(jnp.sum(y**3) for y in jax.tree.leaves(ys))

    def penalty(scan, z, xs):
        by_state, by_inputs = jax.grad(partial(value, scan), argnums=(0, 1))(z, xs)
        return by_state**2 + jnp.sum(by_inputs**2)

    def linear(scan, z):
        return jax.grad(lambda z: scan(STEPS[step], z, jnp.arange(3.0))[0])(z) ** 2

    def both(scan, z, xs):
        return jax.grad(partial(penalty, scan), argnums=(0, 1))(z, xs), jax.grad(
            partial(linear, scan)
        )(z)

    arguments = jnp.float64(1.3), jnp.arange(3.0)
    found = jax.jit(partial(both, partial(deeppcr.scan, **way)))(*arguments)
    assert_agree(found, jax.jit(partial(both, jax.lax.scan))(*arguments))
