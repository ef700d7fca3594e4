"""Sums of a few outer products in gradients of arrays."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from deeppcr.rewrites import plain_gradients
from depth.jaxprs import live_equations, without_constants
from tests.problems import assert_agree, normal

L, BATCH, WIDTH = 32, 3, 4


def live(f, name, *arguments):
    """The equations of this name, outside of calls, that the result depends on."""
    program = without_constants(jax.make_jaxpr(f)(*arguments))
    return [each for each in live_equations(program) if each.primitive.name == name]


def product(contracted, along=((), ())):
    return lambda a, b: lax.dot_general(a, b, (contracted, along))


each = product(((1,), (1,)), ((0,), (0,)))  # [L, n, m]: of every step
total = product(((0, 1), (0, 1)))  # [n, m]


# name: (function of [L, BATCH, WIDTH] and [L, BATCH, WIDTH], whether products stay)
PRODUCTS = {
    "a batch of sums of outer products": (each, False),
    "transposed": (lambda a, b: jnp.swapaxes(each(a, b), 1, 2), False),
    "in a call": (lambda a, b: jax.jit(each)(a, b), False),
    "two axes of a batch": (
        lambda a, b: product(((2,), (2,)), ((0, 1), (0, 1)))(
            *(x.reshape(2, L // 2, BATCH, WIDTH) for x in (a, b))
        ),
        False,
    ),
    "one sum over all steps": (total, True),
    "a sum of vectors": (product(((2,), (2,)), ((0, 1), (0, 1))), True),
    "two terms": (lambda a, b: each(a[:, :2], b[:, :2]), True),
    "few steps": (lambda a, b: each(a[:31], b[:31]), True),
    "integers": (lambda a, b: each((9 * a).astype(int), (9 * b).astype(int)), True),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_outer_products(name):
    f, stays = PRODUCTS[name]
    a, b = normal(0, L, BATCH, WIDTH), normal(1, L, BATCH, WIDTH)
    assert bool(live(plain_gradients(f), "dot_general", a, b)) == stays
    assert_agree(plain_gradients(f)(a, b), f(a, b))


def test_the_terms_of_a_short_dtype_are_added_in_float32():
    a = jnp.ones((L, 32, 2), jnp.bfloat16)
    b = jnp.concatenate([a[:, :1] * 256, a[:, 1:]], axis=1)
    found = plain_gradients(each)(a, b)
    assert found.dtype == jnp.bfloat16
    assert (found == 288).all()  # 256 if 1 is added to 256 in bfloat16


def test_on_an_accelerator_they_stay(monkeypatch):
    monkeypatch.setattr("deeppcr.rewrites.outer_products.platform", lambda: "cuda")
    a, b = normal(0, L, BATCH, WIDTH), normal(1, L, BATCH, WIDTH)
    assert live(plain_gradients(each), "dot_general", a, b)


def test_gradients_of_weights_of_their_own_are_those_of_the_loop():
    weights, z = normal(0, 2 * L, WIDTH, WIDTH), normal(1, BATCH, WIDTH)

    def loss(weights, z, scan, **options):
        def step(z, w):
            a, b = jnp.split(z @ w, 2, axis=-1)
            return jnp.tanh(jnp.concatenate([a * b, a], axis=-1)), None

        return jnp.sum(scan(step, z, weights, **options)[0] ** 2)

    def of(scan, **options):
        return jax.jit(jax.grad(lambda *both: loss(*both, scan, **options), (0, 1)))(weights, z)

    expected = of(lax.scan)
    for adjoint in ("backprop", deeppcr.Recurrence()):
        assert_agree(of(deeppcr.scan, adjoint=adjoint, batch_ndim=1), expected)
