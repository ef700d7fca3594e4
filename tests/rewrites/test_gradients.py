"""Sums of a few outer products in gradients of arrays."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

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


def test_on_an_accelerator_they_stay(monkeypatch):
    monkeypatch.setattr("deeppcr.rewrites.outer_products.platform", lambda: "cuda")
    a, b = normal(0, L, BATCH, WIDTH), normal(1, L, BATCH, WIDTH)
    assert live(plain_gradients(each), "dot_general", a, b)
