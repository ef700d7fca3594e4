"""Steps that call a `jax.custom_vjp`: their derivatives are jax's, also of second order."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.adjoint import Autodiff, resolve_adjoint
from deeppcr.chain.chain import trace_chain
from tests.problems import assert_agree, normal

WEIGHT, Z0, XS = normal(0, 3, 3, scale=0.4), jnp.ones(3), normal(1, 6, 3)


def with_rule(function, back):
    """A function with a rule, of its operands and of the cotangent."""
    found = jax.custom_vjp(function)
    found.defvjp(lambda *x: (function(*x), x), back)
    return found


def itself(x):
    return x


def kept(x):
    """The forward rule calls the function, and so uses its rule in second derivatives."""
    return sine_kept(x), x


sine_kept = jax.custom_vjp(jnp.sin)
sine_kept.defvjp(kept, lambda x, g: (jnp.where(x > 0, 2 * g * jnp.cos(x), 0.0),))
straight = with_rule(lambda x: jnp.round(4 * x) / 4, lambda _, g: (g,))
halved = with_rule(
    lambda w, x: w @ x, lambda r, g: (jnp.outer(g, r[1]), 0.5 * jnp.einsum("ij,i->j", r[0], g))
)
known = with_rule(itself, lambda _, g: (g,))
closing = with_rule(lambda x: WEIGHT @ x, lambda _, g: (2 * WEIGHT.T @ g,))
scaled = with_rule(
    lambda n, x: n.astype(x.dtype) * x, lambda r, g: (None, r[0].astype(g.dtype) * g)
)


def _cumulated_back(residuals, g):
    (x,) = residuals
    total, parts = jax.lax.scan(lambda c, g: (c + g, c + g), 0.0, g[::-1])
    padded = jnp.zeros((5,)).at[1:4].add(parts[::-1])
    chosen = jax.lax.cond(x[0] > 9, lambda g: 2 * g, lambda g: g, padded[1:4])
    return (jax.jit(lambda g: g / (1 + x**2))(chosen) + 0.0 * total,)


cumulated = with_rule(lambda x: jnp.cumsum(x), _cumulated_back)
# -- a rule that is not
clipped = with_rule(itself, lambda _, g: (jnp.clip(g, -0.2, 0.2),))


def loops(w, z, x):
    z = jax.lax.scan(lambda z, _: (jax.checkpoint(jax.jit(sine_kept))(w @ z), None), z, None, 2)[0]
    return jax.lax.cond(x[0] > 0, lambda: sine_kept(closing(z)), lambda: jnp.tanh(z)) + x


def every_rule(w, z, x):
    several = (
        jnp.tanh(straight(w @ z) + 0.5 * z + x),
        jnp.tanh(halved(w, z) + x),  # not the derivative
        sine_kept(w @ z + x),
        jnp.tanh(w @ closing(z)) + x,
        jnp.tanh(scaled(jnp.arange(3), w @ z) + x),
        0.3 * cumulated(w @ z) + x,
    )
    return sum(several) / 6


def calls_itself(w, z, x):
    return sine_kept(w @ z + x)


def chain_of(function):
    def step(z, x):
        z = function(WEIGHT, z, x)
        return z, z

    return trace_chain(step, Z0, XS, len(XS), 0, "z0")


def loss(scan, function, weight, init, xs):
    def step(z, x):
        new = function(weight, z, x)
        return new, new * z

    last, ys = scan(step, init, xs)
    return jnp.sum(last**2) + jnp.sum(jnp.sin(ys))


def gradient(scan, function):
    return jax.grad(partial(loss, scan, function), argnums=(0, 1, 2))(WEIGHT, Z0, XS)


def gradients_of_examples(scan, function):
    several = jax.grad(partial(loss, scan, function), argnums=(0, 1, 2))
    return jax.vmap(several, in_axes=(None, 0, None))(WEIGHT, jnp.stack([Z0, 2 * Z0]), XS)


def gradients_of_gradients(scan, function):
    """The gradient of a gradient's size, and that gradient."""

    def size(*arguments):
        gradient = jax.grad(partial(loss, scan, function), argnums=(0, 1, 2))(*arguments)
        return sum(jnp.sum(g**2) for g in gradient), gradient

    return jax.grad(size, argnums=(0, 1, 2), has_aux=True)(WEIGHT, Z0, XS)


@pytest.mark.parametrize(
    ("transformation", "function"),
    [
        (gradient, every_rule),
        (gradients_of_examples, loops),
        (gradients_of_gradients, calls_itself),
    ],
)
def test_derivatives(transformation, function):
    scans = partial(deeppcr.scan, adjoint="sequential"), jax.lax.scan
    assert_agree(*jax.jit(lambda: [transformation(scan, function) for scan in scans])())


@pytest.mark.parametrize("rule", [known, clipped])
def test_a_rule_is_left_to_jax(rule):
    chain = chain_of(lambda w, z, x: jnp.tanh(rule(w @ z) + x))
    assert isinstance(resolve_adjoint(deeppcr.Adjoint(), None, chain, False), Autodiff)
    plan = deeppcr.plan(deeppcr.Chain(lambda z, x: jnp.tanh(rule(z) + x), XS), Z0)
    assert "the step calls a jax.custom_vjp" in str(plan)
