"""Derivatives of derivatives of an affine step.

Parts of its linear system do not depend on what is moved.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import assert_agree

STEPS = {
    "z -> az + b": lambda z, x: (0.5 * z + 0.3, None),
    "z -> xz": lambda z, x: (x * z, z),
    "z -> x": lambda z, x: (jnp.sin(x) + 0 * z, z),
}


def derivatives(step, scan):
    """The gradient of the size of a gradient."""

    def value(z, xs):
        last, ys = scan(STEPS[step], z, xs)
        return last**2 + sum(jnp.sum(y**3) for y in jax.tree.leaves(ys))

    def penalty(z, xs):
        by_state, by_inputs = jax.grad(value, argnums=(0, 1))(z, xs)
        return by_state**2 + jnp.sum(by_inputs**2)

    def linear(z):
        return jax.grad(lambda z: scan(STEPS[step], z, xs)[0])(z) ** 2

    z, xs = np.float64(1.3), np.arange(3.0)
    by_state = jax.grad(linear)(z) if step == "z -> az + b" else None
    return jax.grad(penalty, argnums=(0, 1))(z, xs), by_state


@pytest.mark.parametrize("step", STEPS)
def test_gradient_of_a_gradient(step):
    scans = partial(deeppcr.scan, adjoint="pcr"), jax.lax.scan
    assert_agree(*jax.jit(lambda: [derivatives(step, scan) for scan in scans])())
