"""Sums over steps without the axes of size 1 that stay.

The same values, and none of the slow sums left.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

import deeppcr
from deeppcr.rewrites import plain_gradients
from depth.jaxprs import without_constants
from tests.problems import assert_agree, rounding


def odd_sums(jaxpr):
    """How many sums keep an axis of size 1."""
    count = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "reduce_sum":
            axes = equation.params["axes"]
            count += any(
                n == 1 for axis, n in enumerate(equation.invars[0].aval.shape) if axis not in axes
            )
        count += sum(
            odd_sums(without_constants(inner)) for inner in jaxprs_in_params(equation.params)
        )
    return count


FUNCTIONS = {
    "one axis": lambda x: x.sum(0),
    "two axes of size 1": lambda x: x[:, None].sum(0),
    "in the middle": lambda x: x.sum(2),
    "none left over": lambda x: x.sum(),
    "over the axis of size 1": lambda x: x.sum(1),
    "of a call": lambda x: jax.jit(lambda y: jax.jit(lambda z: 2 * z.sum(0))(y) + 1)(x),
    "several results": lambda x: {"a": x.sum(0), "b": (x + 1, x.sum((0, 2)))},
}


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_the_sums_are_the_same(dtype):
    x = jnp.arange(12.0).reshape(4, 1, 3).astype(dtype)
    found, expected = (
        jax.jit(lambda x, of=of: {name: of(f)(x) for name, f in FUNCTIONS.items()})(x)
        for of in (plain_gradients, lambda f: f)
    )
    assert_agree(found, expected, rounding(dtype, 4))


def test_none_of_them_is_left():
    for name, f in FUNCTIONS.items():
        if name not in ("none left over", "over the axis of size 1"):
            x = jnp.ones((4, 1, 3))
            assert odd_sums(without_constants(jax.make_jaxpr(f)(x))), name
            assert not odd_sums(without_constants(jax.make_jaxpr(plain_gradients(f))(x))), name


def test_gradients_of_a_batch_of_one_have_none():
    z, xs = jnp.zeros((1, 3)), jnp.ones((8, 1, 3))

    def loss(a, scan, **options):
        return jnp.sum(scan(lambda z, x: (jnp.tanh(a[None] * z + x), z), z, xs, **options)[1] ** 2)

    def of_ours(a):
        return loss(a, deeppcr.scan, adjoint="sequential", batch_ndim=1)

    a = jnp.array([0.1, 0.2, 0.3])
    program = jax.jit(jax.grad(of_ours)).lower(a)
    assert "stablehlo.reduce" in program.as_text()
    assert "across dimensions = [0] : (tensor<8x1x3xf64>" not in program.as_text()
    right = jax.jit(jax.grad(partial(loss, scan=jax.lax.scan)))(a)
    assert_agree(program.compile()(a), right, 1e-12)
