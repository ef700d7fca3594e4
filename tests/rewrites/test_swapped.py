"""Transposed products as products of swapped operands: the same values, and no transposes left."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from deeppcr.rewrites import plain_gradients
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

HIGHEST = lax.Precision.HIGHEST


def einsum(spec, *operands):
    return lax.transpose(jnp.einsum(spec, *operands), (0, 2, 1))


# name: (function, whether a transpose stays)
FUNCTIONS = {
    "of a product": (lambda a, b: (a[0] @ b[0]).T, False),
    "of many products": (lambda a, b: einsum("lij,ljk->lik", a, b), False),
    "of an outer product": (
        lambda a, b: lax.dot_general(a[0, 0], b[0, 1], (((), ()), ((), ()))).T,
        False,
    ),
    "in a call": (lambda a, b: 2 * jax.jit(lambda a, b: (a @ b).T)(a[0], b[0]), False),
    "two precisions": (lambda a, b: jnp.dot(a[0], b[0], precision=("default", "highest")).T, False),
    "read twice": (lambda a, b: (lambda y: (y.T, y))(a[0] @ b[0]), True),
    "moves the axis of a batch": (
        lambda a, b: lax.transpose(jnp.einsum("lij,ljk->lik", a, b), (2, 1, 0)),
        True,
    ),
    "of a sum": (lambda a, b: (a[0] + b[0, :2]).T, True),
}


def transposes(f, *arguments):
    found = equations(jax.make_jaxpr(f)(*arguments))
    return sum(each.primitive.name == "transpose" for each in found)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_results_are_the_same(name):
    f, stays = FUNCTIONS[name]
    a, b = normal(0, 4, 2, 3), normal(1, 4, 3, 3)
    assert transposes(f, a, b)
    assert bool(transposes(plain_gradients(f), a, b)) == stays
    assert_agree(plain_gradients(f)(a, b), f(a, b))


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_gradients_of_weights_of_their_own_are_not_transposed(batch):
    z, weights = jnp.ones((*batch, 4)), normal(0, 6, 4, 4)

    def loss(weights, scan, **options):
        return jnp.sum(scan(lambda z, w: (jnp.tanh(z @ w), None), z, weights, **options)[0] ** 2)

    def of_ours(weights):
        return loss(weights, deeppcr.scan, adjoint="backprop", batch_ndim=len(batch))

    program = jax.jit(jax.grad(of_ours)).lower(weights)
    assert "tensor<6x4x4xf64>) -> tensor<6x4x4xf64>" not in "".join(
        line for line in program.as_text().splitlines() if "stablehlo.transpose" in line
    )
    assert_agree(program.compile()(weights), jax.grad(loss)(weights, jax.lax.scan))
