"""Derivatives of derivatives of an affine step.

Parts of its linear system do not depend on what is moved.
"""

from functools import cache, partial

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
PCR = {"adjoint": "pcr"}
CASES = [
    *((step, PCR) for step in STEPS),
    ("z -> xz", {"adjoint": "backprop"}),
]


def derivatives(step, scan):
    """The gradient of the size of a gradient."""

    def value(z, xs):
        last, ys = scan(STEPS[step], z, xs)
        return last**2 + sum(jnp.sum(y**3) for y in jax.tree.leaves(ys))

    def penalty(z, xs):
        by_state, by_inputs = jax.grad(value, argnums=(0, 1))(z, xs)
        return by_state**2 + jnp.sum(by_inputs**2)

    def linear(z):
        return jax.grad(lambda z: scan(STEPS[step], z, jnp.arange(3.0))[0])(z) ** 2

    @jax.jit
    def both(z, xs):
        return jax.grad(penalty, argnums=(0, 1))(z, xs), jax.grad(linear)(z)

    return both(jnp.float64(1.3), jnp.arange(3.0))


@cache
def expected(step):
    return derivatives(step, jax.lax.scan)


@pytest.mark.parametrize(("step", "options"), CASES, ids=str)
def test_gradient_of_a_gradient(step, options):
    assert_agree(derivatives(step, partial(deeppcr.scan, **options)), expected(step))
