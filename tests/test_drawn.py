"""Numbers drawn by a step are those of `jax.lax.scan`, and drawn once, before the chain."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.chain import drawn
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

L, N = 7, 3
W, Z, XS = normal(0, N, N, scale=0.4), normal(1, N), normal(2, L, N)
KEY = jax.random.key(3)
KEYS = jax.random.split(KEY, L)
BITS = {"random_bits", "threefry2x32"}


def noise(key, like):
    return jax.random.normal(key, like.shape, like.dtype)


def carried(w, carry, x):
    z, key = carry
    key, now = jax.random.split(key)
    return jnp.tanh(z @ w + x + noise(now, z)), key


def counted(w, carry, x):
    z, k = carry
    return jnp.tanh(z @ w + x + noise(jax.random.fold_in(KEY, k), z)), k + 1


def dropout(w, z, inputs):
    x, key = inputs
    return jnp.tanh(jnp.where(jax.random.bernoulli(key, 0.8, z.shape), z, 0) @ w + x)


STEPS = {
    "a key that is carried": (carried, (Z, KEY), XS),
    "a counter": (counted, (Z, 0), XS),
    "keys that are given": (dropout, Z, (XS, KEYS)),
    "some by the state": (lambda w, z, key: jnp.tanh(z @ w) + z * noise(key, z), Z, KEYS),
}
OTHERS = {
    "the same in all steps": (lambda w, z, x: jnp.tanh(z @ w + x + noise(KEY, z)), Z, XS),
    "by a parameter": (
        lambda w, z, key: jnp.where(jax.random.bernoulli(key, w[0, 0] ** 2, z.shape), z @ w, 0),
        Z,
        KEYS,
    ),
}


def loss(scan, step, w, z, xs):
    def body(carry, x):
        carry = step(w, carry, x)
        return carry, jax.tree.leaves(carry)[0]

    return jnp.sum(scan(body, z, xs)[1] ** 2)


def draws(f, *operands):
    """The number of equations that draw, in all programs of a function."""
    return sum(x.primitive.name in BITS for x in equations(jax.make_jaxpr(f)(*operands)))


@pytest.mark.parametrize("name", [*STEPS, *OTHERS])
def test_it_draws_what_the_loop_draws(name):
    step, *at = (STEPS | OTHERS)[name]
    ours = [partial(deeppcr.scan, method=method) for method in ("sequential", "newton")]

    @jax.jit
    def each(*at):
        return [
            jax.value_and_grad(partial(loss, scan, step))(*at) for scan in [jax.lax.scan, *ours]
        ]

    expected, *found = each(W, *at)
    assert_agree(found, [expected] * 2)


@pytest.mark.parametrize("name", STEPS)
def test_it_draws_once(name):
    step, z, xs = STEPS[name]
    gradient = jax.grad(partial(loss, deeppcr.scan, step))
    once = jax.make_jaxpr(lambda key: noise(key, Z))(KEY)
    assert draws(gradient, W, z, xs) == sum(x.primitive.name in BITS for x in equations(once))


def test_a_batch_of_calls_draws_for_each():
    step, z, _ = STEPS["keys that are given"]
    keys = jax.vmap(partial(jax.random.split, num=L))(jax.random.split(KEY, 2))
    each = lambda scan: jax.vmap(lambda keys: loss(scan, step, W, z, (XS, keys)))(keys)  # noqa: E731
    assert_agree(*jax.jit(lambda: [each(scan) for scan in (deeppcr.scan, jax.lax.scan)])())


def test_what_would_take_too_much_memory_is_drawn_by_the_steps(monkeypatch):
    step, z, xs = STEPS["keys that are given"]
    few = jax.make_jaxpr(partial(loss, deeppcr.scan, step))(W, z, xs)
    monkeypatch.setattr(drawn, "MOST_BYTES", L * N - 1)
    many = jax.make_jaxpr(partial(loss, deeppcr.scan, step))(W, z, xs)
    assert str(few) != str(many)
    assert_agree(loss(deeppcr.scan, step, W, z, xs), loss(jax.lax.scan, step, W, z, xs))
