"""The derivative of a loop as it is: that of `jax.lax.scan`, its slices where the step has them."""

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.adjoint import Autodiff
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

Z, XS, BIAS = jnp.zeros(3), normal(0, 5, 6), normal(1, 6)


def loss(scan, bias, **options):
    def step(z, x):
        gate, new = jnp.split(jnp.sin(x + bias), 2)
        z = gate * z + new
        return z, z

    return jnp.sum(scan(step, Z, XS, **options)[1] ** 2)


@pytest.mark.parametrize("rewritten", [False, True])
def test_slices_come_first_only_if_it_is_rewritten(rewritten):
    adjoint = Autodiff(with_states=True, rewritten=rewritten)

    def of_ours(bias):
        return loss(deeppcr.scan, bias, method="sequential", adjoint=adjoint)

    program = jax.make_jaxpr(jax.grad(of_ours))(BIAS)
    sines = [
        each.outvars[0].aval.shape for each in equations(program) if each.primitive.name == "sin"
    ]
    assert ((6,) in sines) == (not rewritten)
    assert_agree(jax.grad(of_ours)(BIAS), jax.grad(lambda bias: loss(jax.lax.scan, bias))(BIAS))
