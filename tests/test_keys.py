"""Random numbers are those of the sequential program, whatever generator keys are of."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from tests.problems import assert_agree, normal

L, Z0 = 7, normal(0, 3)
OTHERS = ["rbg", "unsafe_rbg"]


def noisy(z, key):
    z = jnp.tanh(z) * jax.random.normal(key, z.shape, z.dtype)
    return z, z.sum()


def folded(key):
    def step(z, i):
        return noisy(z, jax.random.fold_in(key, i))

    return step, jnp.arange(L)


def of_a_state(key):
    def step(z, state):
        bits = lax.rng_bit_generator(state, z.shape)[1]
        return jnp.sin(z + bits.astype(z.dtype) / 2**32), None

    return step, jax.random.bits(key, (L, 4), jnp.uint32)


def in_a_branch(key):
    def step(z, key):
        return lax.cond(z[0] > 0, noisy, lambda z, key: (z - 0.5, 0.0), z, key)

    return step, jax.random.split(key, L)


def both(scan, step, xs, **options):
    def loss(z):
        last, ys = scan(step, z, xs, **options)
        return sum(y.sum() for y in jax.tree.leaves((last, ys)))

    return jax.value_and_grad(loss)(Z0)


@pytest.mark.parametrize("impl", OTHERS)
@pytest.mark.parametrize("options", [{}, {"adjoint": "backprop"}, {"method": "sequential"}])
def test_values_and_gradients_have_the_same_numbers(impl, options):
    xs = jax.random.split(jax.random.key(0, impl=impl), L)
    assert_agree(both(deeppcr.scan, noisy, xs, **options), both(lax.scan, noisy, xs))


@pytest.mark.parametrize("program", [folded, of_a_state, in_a_branch])
def test_wherever_they_are_drawn(program):
    step, xs = program(jax.random.key(0, impl="rbg"))
    assert_agree(
        both(partial(deeppcr.scan, adjoint="backprop"), step, xs), both(lax.scan, step, xs)
    )


@pytest.mark.parametrize("impl", OTHERS)
@pytest.mark.parametrize("options", [{"method": "newton"}, {"adjoint": "pcr"}])
def test_a_parallel_method_is_refused(impl, options):
    with pytest.raises(ValueError, match=r"draws random bits with keys of dtype key<u?rbg>"):
        deeppcr.scan(noisy, Z0, jax.random.split(jax.random.key(0, impl=impl), L), **options)


def test_a_key_that_is_the_same_in_all_steps_is_not():
    key = jax.random.key(0, impl="rbg")

    def step(z, x):
        return noisy(z, key)[0] + x, z

    ours = deeppcr.scan(step, Z0, normal(1, L, 3), method="newton")
    assert_agree(ours, lax.scan(step, Z0, normal(1, L, 3)))
