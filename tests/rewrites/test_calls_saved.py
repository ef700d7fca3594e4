"""Which loops take less time as one function."""

import jax
import jax.numpy as jnp
import pytest

from deeppcr.chain import trace_chain
from tests.problems import normal


def rnn(z, x, *weights):
    for w in weights:
        z = jnp.tanh(z @ w + x)
    return z, z


def own(z, w):
    """A layer with weights of its own."""
    z = jnp.tanh(z @ w)
    return z, z


def gru(z, x, w, v):
    n = z.shape[-1]
    reset, update = jnp.split(jax.nn.sigmoid(x[:, : 2 * n] + z @ w), 2, axis=-1)
    z = update * z + (1 - update) * jnp.tanh(x[:, 2 * n :] + (reset * z) @ v)
    return z, z


def convolution(z, w):
    moved = jax.lax.conv_general_dilated(
        jnp.tanh(z), w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return z + moved, z


def scaled(z, x):
    z = jnp.tanh(z) * x
    return z, z


def saves(step, z, xs, *weights):
    found = trace_chain(lambda z, x: step(z, x, *weights), z, xs, len(xs), 1, "init").step
    assert found.fits_one_function
    return found.gains_as_one_function


@pytest.mark.parametrize(("n", "batch", "expected"), [(4, 8, True), (16, 8, False), (32, 8, True)])
def test_a_product_of_matrices_saves_a_call_if_it_is_small_or_calls_a_library(n, batch, expected):
    z, xs, w = jnp.ones((batch, n)), jnp.ones((3, batch, n)), normal(0, n, n)
    assert saves(rnn, z, xs, w) is expected


def test_slices_of_weights_are_copied():
    z, w = jnp.ones((1, 16)), normal(0, 2, 16, 16)
    xs = jnp.ones((3, 1, 16))
    assert saves(rnn, z, xs, w[0], w[1])
    assert not saves(own, z, normal(1, 3, 16, 16))
    assert not saves(lambda z, x: rnn(z, x, w[0], w[1]), z, xs)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_a_recurrent_cell_saves_many_calls(n):
    z, xs = jnp.ones((8, n)), jnp.ones((3, 8, 3 * n))
    assert saves(gru, z, xs, normal(0, n, 2 * n), normal(1, n, n))


@pytest.mark.parametrize(("batch", "positions", "expected"), [(1, 4, True), (8, 2, False)])
def test_a_convolution_saves_the_call_of_a_library(batch, positions, expected):
    z, filters = jnp.ones((batch, positions, 4)), normal(0, 5, 3, 4, 4)
    assert saves(convolution, z, filters) is expected


@pytest.mark.parametrize(("n", "expected"), [(16, True), (64, False)])
def test_large_states_lose(n, expected):
    assert saves(scaled, jnp.ones((8, n)), jnp.ones((3, 8, n))) is expected
