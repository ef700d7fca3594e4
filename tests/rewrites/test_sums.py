"""Sums over steps without the axes of size 1 that stay.

The same values, and none of the slow sums left.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

import deeppcr
from deeppcr.rewrites import with_plain_sums
from depth.jaxprs import without_constants


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


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_the_sums_are_the_same(name, dtype):
    f, x = FUNCTIONS[name], jnp.arange(12.0).reshape(4, 1, 3).astype(dtype)
    found, expected = with_plain_sums(f)(x), f(x)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert jnp.allclose(a, b, rtol=1e-2 if dtype == jnp.bfloat16 else 1e-14)


def test_none_of_them_is_left():
    for name, f in FUNCTIONS.items():
        if name not in ("none left over", "over the axis of size 1"):
            x = jnp.ones((4, 1, 3))
            assert odd_sums(without_constants(jax.make_jaxpr(f)(x))), name
            assert not odd_sums(without_constants(jax.make_jaxpr(with_plain_sums(f))(x))), name


@pytest.mark.parametrize("adjoint", ["sequential", "pcr"])
def test_gradients_of_a_batch_of_one_have_none(adjoint):
    z, xs = jnp.zeros((1, 3)), jnp.ones((8, 1, 3))

    def loss(a, scan, **options):
        return jnp.sum(scan(lambda z, x: (jnp.tanh(a[None] * z + x), z), z, xs, **options)[1] ** 2)

    def of_ours(a):
        return loss(a, deeppcr.scan, adjoint=adjoint, batch_ndim=1)

    a = jnp.array([0.1, 0.2, 0.3])
    program = jax.jit(jax.grad(of_ours)).lower(a).as_text()
    assert "stablehlo.reduce" in program
    assert "across dimensions = [0] : (tensor<8x1x3xf64>" not in program
    (gradient, hessian), (right, right_hessian) = (
        jax.jit(lambda a, f=f: (jax.grad(f)(a), jax.hessian(f)(a)))(a)
        for f in (of_ours, lambda a: loss(a, jax.lax.scan))
    )
    assert jnp.allclose(gradient, right, rtol=1e-12)
    assert jnp.allclose(hessian, right_hessian, rtol=1e-10)
