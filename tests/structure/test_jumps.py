"""Where a step may jump: lines that choose by the state, and expressions that only look so."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from deeppcr.step import trace
from deeppcr.structure import find_jumps
from tests.problems import normal

W = normal(0, 3, 3)
Z = jnp.ones(3)


def norm(z):
    return jnp.sqrt(jnp.square(z).sum())


CONTINUOUS = {
    "tanh": lambda z: jnp.tanh(W @ z),
    "relu": lambda z: jax.nn.relu(W @ z),
    "relu by where": lambda z: jnp.where(W @ z > 0, W @ z, 0.0),
    "relu by a mask": lambda z: (z > 0).astype(z.dtype) * z,
    "abs by where": lambda z: jnp.where(z < 0, -z, z),
    "abs by sign": lambda z: jnp.sign(z) * z,
    "the larger of two": lambda z: jnp.where(z > z[::-1], z, z[::-1]),
    "leaky relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "hard tanh": jax.nn.hard_tanh,
    "softmax": jax.nn.softmax,
    "clip": lambda z: jnp.clip(z, -1, 1),
    "Huber": lambda z: jnp.where(jnp.abs(z) <= 1.5, z * z / 2, 1.5 * (jnp.abs(z) - 0.75)),
    "smooth step": lambda z: jnp.where(z < 0, 0.0, jnp.where(z > 1, 1.0, z * z * (3 - 2 * z))),
    "both conditions": lambda z: jnp.where((z > -1) & (z < 1), z, jnp.sign(z)),
    "clipped by norm": lambda z: jnp.where(norm(z) > 1, z / norm(z), z),
    "a broadcast choice": lambda z: jnp.where((z > 0)[:, None], z[:, None] * W, 0).sum(1),
    "normalised": lambda z: z / norm(z),
    "safe division": lambda z: jnp.where(z == 0, 1.0, jnp.sin(z) / jnp.where(z == 0, 1.0, z)),
    "NaN as zero": lambda z: jnp.where(jnp.isnan(z), 0.0, z),
    "sorted": jnp.sort,
    "the largest": lambda z: z * z.max() + lax.top_k(z, 2)[0][1],
    "a loop": lambda z: lax.fori_loop(0, 3, lambda _, z: jnp.tanh(z), z),
    "choice of an input": lambda z: jnp.where(W[0] > 0, z, -z),
}

JUMPS = {
    "selects by": lambda z: jnp.where(z > 0, z, 1.0),
    "compares": lambda z: (z > 0).astype(z.dtype) + z,
    "takes the sign of": lambda z: jnp.sign(W @ z),
    "rounds": lambda z: z - jnp.floor(z),
    "takes the remainder of": lambda z: lax.rem(z, jnp.full_like(z, 2.0)),
    "takes the argmax of": lambda z: z + lax.argmax(z, 0, jnp.int32).astype(z.dtype),
    "sorts by": lambda z: z + jnp.argsort(z).astype(z.dtype),
    "branches by": lambda z: lax.cond(z[0] > 0, lambda: z, lambda: 1 - z),
    "loops by": lambda z: lax.while_loop(lambda z: z.sum() < 10, lambda z: 2 * z, z),
}

SELECTS = {
    "accept": lambda z: jnp.where(((z + 1) ** 2 - z**2).sum() > -0.3, z + 1, z),
    "reset": lambda z: jnp.where(z > 1, 0.0, z + 0.1),
    "all of them": lambda z: jnp.where(jnp.all(z > 0), z, 1 - z),
    "a mask of the largest": lambda z: jnp.where(z == z.max(), 1.0, 0.0),
    "in a loop": lambda z: lax.scan(lambda c, _: (jnp.where(c > 0, c, 2), None), z, length=3)[0],
    "mapped": lambda z: jax.vmap(lambda z: jnp.where(z > 0, z, 1.0))(z),
    "deep inside": lambda z: jax.jit(lambda z: jax.checkpoint(JUMPS["selects by"])(z))(z),
}


def jumps(f):
    return find_jumps(trace(lambda z, _: (f(z), None), Z, None)[0])


@pytest.mark.parametrize("name", CONTINUOUS)
def test_what_is_continuous_is_no_jump(name):
    assert jumps(CONTINUOUS[name]) == ()


@pytest.mark.parametrize("verb", JUMPS)
def test_a_jump_is_found_with_its_line(verb):
    (found,) = jumps(JUMPS[verb])
    line = JUMPS[verb].__code__.co_firstlineno
    assert str(found) == f"test_jumps.py:{line} {verb} the state"


@pytest.mark.parametrize("name", SELECTS)
def test_choices_between_values_that_differ(name):
    assert {found.verb for found in jumps(SELECTS[name])} == {"selects by"}


def test_outputs_may_jump():
    step, _ = trace(lambda z, _: (jnp.tanh(z), z > 0), Z, None)
    assert find_jumps(step) == ()
