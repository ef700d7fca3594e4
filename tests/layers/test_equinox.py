"""equinox modules, of which deeppcr knows nothing but that they are pytrees."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

import deeppcr
from tests.layers.kinds import X, chains, loop, same_as_loop, square
from tests.problems import assert_agree

N = 4
KEYS = list(jax.random.split(jax.random.key(0), N))


def mlps():
    return [eqx.nn.MLP(3, 3, 4, 1, lambda x: jnp.sin(x), key=key) for key in KEYS]


class Residual(eqx.Module):
    """A function, a number and a name among its fields, one of them static."""

    linear: eqx.nn.Linear
    act: object
    scale: float
    name: str = eqx.field(static=True, default="a")

    def __call__(self, x, *, key=None):
        return x + self.scale * self.act(self.linear(x))


def residuals(*fields):
    """Modules with these functions, numbers and names."""
    return [
        Residual(eqx.nn.Linear(3, 3, key=key), *each)
        for key, each in zip(KEYS, fields, strict=False)
    ]


def test_lists():
    for layers in (mlps(), residuals(*[(jnp.tanh, 0.5)] * N)):
        assert chains(layers) == [(0, N, 1, "")]
        same_as_loop(layers, method="newton")


def test_unlike_fields():
    """Functions and numbers that are leaves, and static fields."""
    for fields in (
        [(jnp.tanh, 0.5), (jnp.sin, 0.5), (jnp.tanh, 0.5)],
        [(jnp.tanh, 1), (jnp.tanh, 1.0), (jnp.tanh, -1)],
        [(lambda x: jnp.sin(x), 1.0), (lambda x: jnp.cos(x), 1.0)],
    ):
        same_as_loop(residuals(*fields), method="sequential")
    names = residuals((jnp.tanh, 0.5, "a"), (jnp.tanh, 0.5, "b"))
    assert chains(names) == [(0, 2, 1, "")]  # not read
    assert len(chains(residuals((jnp.tanh, 0.5), (jnp.tanh, 0.5), (jnp.sin, 0.5)))) == 2


def test_filter_grad():
    """Gradients in the modules' own structure, with None for what is no array."""

    def gradient(run):
        return eqx.filter_jit(eqx.filter_value_and_grad(lambda m, x: square(run(m, x))))(mlps(), X)

    assert_agree(gradient(partial(deeppcr.forward, adjoint="sequential")), gradient(loop))
