"""Layers in `jax.jit`, in other transformations, and in what only looks like them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import deeppcr
from tests.layers.kinds import X, loop
from tests.problems import assert_agree, rounding

PURE = {}


def pure(make):
    """``make()`` returns layers that leave nothing behind."""
    PURE[make.__name__] = make
    return make


def times(scale):
    return lambda x: jnp.sin(x * scale)


@pure
def jit_with_options():
    def layer(x):
        return jnp.sin(x)

    return [jax.jit(layer, inline=True), jax.jit(layer), jax.jit(layer, keep_unused=True)] * 2


@pure
def pmap():
    return [jax.pmap(lambda x, c=c: x * c) for c in (0.5, 2.0, 3.0)]


@pure
def wrapped_with_other_functions():
    def times(c):
        @functools.wraps(jnp.sin)
        def layer(x):
            return x * c

        layer.lower = None
        return layer

    return [times(c) for c in (0.5, 2.0, 3.0)]


@pure
def jit_wrapped_with_other_functions():
    return [functools.wraps(lambda x: x)(jax.jit(lambda x, c=c: x * c)) for c in (0.5, 2.0, 3.0)]


class LikeJit:
    def __init__(self, scale):
        self.scale, self.__wrapped__ = scale, lambda x: x

    def lower(self, x):
        return x

    def __call__(self, x):
        return x * self.scale


@pure
def objects_like_jit():
    return [LikeJit(c) for c in (0.5, 2.0, 3.0)]


@pure
def transformed():
    return [
        jax.checkpoint(lambda x: jnp.sin(x)),
        jax.vmap(lambda x: jnp.sin(x)),
        jax.vmap(lambda x: jnp.cos(x)),
        eqx.filter_jit(lambda x: x * 2.0),
        eqx.filter_jit(lambda x: x * 3.0),
        nnx.jit(lambda x: x * 2.0),
        nnx.jit(lambda x: x * 3.0),
        jax.nn.relu,
    ]


@pure
def one_of_six_is_different():
    return [*[times(0.5)] * 3, times(0.7), *[times(0.5)] * 2]


@pure
def one_true_and_one():
    return [
        lambda x, c=c: x * (2.0 if c is True else 3.0 if type(c) is int else 5.0)
        for c in (1, True, 1.0, frozenset, None)
    ]


@pytest.mark.parametrize("name", PURE)
def test_functions_of_all_sorts(name):
    x = X[:1] if name == "pmap" else X
    layers = PURE[name]()
    assert_agree(deeppcr.forward(layers, x), loop(layers, x))
    assert_agree(deeppcr.forward(PURE[name](), x, method="newton"), loop(layers, x))


def test_jit_keeps_what_it_read():
    """`jax.jit` reads a dict once; the loop, and so `forward`, goes on with what it read."""

    def run(forward):
        table = {"scale": 1.0}
        layers = [jax.jit(lambda x: x * table["scale"])] * 3
        first = forward(layers, X)
        table["scale"] = 2.0
        return first, forward(layers, X)

    assert_agree(run(deeppcr.forward), run(loop))


def test_donated_states():
    def run(forward):
        x = jnp.array(X)
        result = forward([jax.jit(lambda x: jnp.sin(x), donate_argnums=0)] * 3, x)
        return result, x.is_deleted()

    assert_agree(run(deeppcr.forward), run(loop))


@pytest.mark.parametrize(
    "x",
    [np.asarray(X), np.float32(0.5), 0.5, X.astype(jnp.bfloat16)],
    ids=["numpy", "scalar", "number", "bfloat16"],
)
def test_states_that_are_not_of_jax(x):
    def asks(x):
        return x * 2 if isinstance(x, np.ndarray) else x * 3 if isinstance(x, float) else x * 4

    for layers in (
        [asks] * 4,
        [np.tanh if isinstance(x, np.ndarray) else jnp.tanh] * 3,
        [asks, jnp.sin, jnp.sin, asks],
    ):
        actual, expected = deeppcr.forward(layers, x), loop(layers, x)
        assert type(actual) is type(expected) or isinstance(expected, jax.Array)
        assert_agree(actual, expected, rounding(getattr(x, "dtype", jnp.float32), 16))
