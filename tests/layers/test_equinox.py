"""equinox modules, of which deeppcr knows nothing but that they are pytrees."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.layers.kinds import X, chains, is_one_chain, loop, options, square
from tests.problems import assert_agree

N = 4
KEYS = list(jax.random.split(jax.random.key(0), N))


def mlps(activation=jax.nn.softplus):
    return [eqx.nn.MLP(3, 3, 4, 1, activation, key=key) for key in KEYS]


def linears():
    return [eqx.nn.Linear(3, 3, key=key) for key in KEYS]


class Residual(eqx.Module):
    """A function, a number and a name among its fields, one of them static."""

    linear: eqx.nn.Linear
    act: object
    scale: float
    name: str = eqx.field(static=True, default="a")

    def __call__(self, x, *, key=None):
        return x + self.scale * self.act(self.linear(x))


LISTS = {
    "mlp": mlps,
    "mlp with lambdas": lambda: [
        m for key in KEYS for m in [eqx.nn.MLP(3, 3, 4, 1, lambda x: jnp.sin(x), key=key)]
    ],
    "residual": lambda: [Residual(m, jnp.tanh, 0.5) for m in linears()],
    "closures": lambda: [lambda x, m=m: m(x) for m in linears()],
}


@pytest.mark.parametrize("name", LISTS)
def test_lists(name):
    layers = LISTS[name]()
    assert_agree(deeppcr.forward(layers, X, **options(list(LISTS).index(name))), loop(layers, X))
    assert is_one_chain(layers)


def test_unlike_fields():
    """Functions and numbers that are leaves, and static fields."""
    made = linears()
    for fields in (
        [(jnp.tanh, 0.5), (jnp.sin, 0.5), (jnp.tanh, 0.5)],
        [(jnp.tanh, 0.5), (jnp.tanh, 0.25), (jnp.tanh, 0.5)],
        [(jnp.tanh, 1), (jnp.tanh, 1.0), (jnp.tanh, -1)],
        [(lambda x: jnp.sin(x), 1.0), (lambda x: jnp.cos(x), 1.0)],
    ):
        layers = [Residual(m, act, scale) for m, (act, scale) in zip(made, fields, strict=False)]
        assert_agree(deeppcr.forward(layers, X), loop(layers, X))
    assert is_one_chain([Residual(made[0], jnp.tanh, 0.5, name) for name in "aab"])  # not read
    assert len(chains([Residual(made[0], act, 0.5) for act in (jnp.tanh, jnp.tanh, jnp.sin)])) == 2


def test_filter_grad():
    """Gradients in the modules' own structure, with None for what is no array."""

    def gradient(run):
        return eqx.filter_jit(eqx.filter_value_and_grad(lambda m, x: square(run(m, x))))(mlps(), X)

    assert_agree(gradient(partial(deeppcr.forward, adjoint="sequential")), gradient(loop))
