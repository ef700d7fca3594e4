"""Random numbers are those of the sequential program, whatever generator keys are of."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from tests.problems import assert_agree, normal

L, Z0 = 7, normal(0, 3)


def noisy(z, key):
    z = jnp.tanh(z) * jax.random.normal(key, z.shape, z.dtype)
    return z, z.sum()


def of_a_state(z, state):
    bits = lax.rng_bit_generator(state, z.shape)[1]
    return jnp.sin(z + bits.astype(z.dtype) / 2**32), None


def in_a_branch(z, key):
    return lax.cond(z[0] > 0, noisy, lambda z, key: (z - 0.5, 0.0), z, key)


KEY = jax.random.key(0, impl="rbg")
KEYS, UNSAFE = (jax.random.split(jax.random.key(0, impl=impl), L) for impl in ("rbg", "unsafe_rbg"))
BACKPROP, PLAIN, NEWTON = {"adjoint": "backprop"}, {"method": "sequential"}, {"method": "newton"}
CASES = {
    "auto": (noisy, KEYS, {}),
    "unsafe": (noisy, UNSAFE, BACKPROP),
    "sequential": (noisy, KEYS, PLAIN),
    "folded": (lambda z, i: noisy(z, jax.random.fold_in(KEY, i)), jnp.arange(L), BACKPROP),
    "of a state": (of_a_state, jax.random.bits(KEY, (L, 4), jnp.uint32), BACKPROP),
    "in a branch": (in_a_branch, KEYS, BACKPROP),
    "the same in all steps": (lambda z, x: (noisy(z, KEY)[0] + x, z), normal(1, L, 3), NEWTON),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_have_the_same_numbers(name):
    step, xs, options = CASES[name]

    def both(scan):
        def loss(z):
            return sum(y.sum() for y in jax.tree.leaves(scan(step, z, xs)))

        return jax.value_and_grad(loss)(Z0)

    scans = partial(deeppcr.scan, **options), lax.scan
    assert_agree(*jax.jit(lambda: [both(scan) for scan in scans])())


@pytest.mark.parametrize("keys", [KEYS, UNSAFE], ids=["rbg", "unsafe_rbg"])
@pytest.mark.parametrize("options", [NEWTON, {"adjoint": "pcr"}])
def test_a_parallel_method_is_refused(keys, options):
    with pytest.raises(ValueError, match=r"draws random bits with keys of dtype key<u?rbg>"):
        deeppcr.scan(noisy, Z0, keys, **options)
