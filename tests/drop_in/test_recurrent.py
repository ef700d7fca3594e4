"""Recurrent layers as they are written: dropout, statistics, examples by vmap."""

import jax
import jax.numpy as jnp
import pytest

from tests.drop_in.kinds import METHODS, SCANS, assert_same
from tests.problems import normal

BATCH, TIME, WIDTH = 2, 5, 2
XS = normal(0, TIME, BATCH, WIDTH)  # time first
ZERO = jnp.zeros((BATCH, WIDTH))
PARAMS = {
    "w": normal(1, 2 * WIDTH, 4 * WIDTH, scale=0.5),
    "b": normal(2, 4 * WIDTH),
}


def lstm(params, carry, x):
    """A cell: carry is (memory, state)."""
    memory, state = carry
    gates = jnp.concatenate([x, state], axis=-1) @ params["w"] + params["b"][None]
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
    state = jax.nn.sigmoid(o) * jnp.tanh(memory)
    return (memory, state), state


def counted_dropout(scan, params, xs):
    """As flax counts: the key stays, and a counter is folded in."""

    def step(c, x):
        carry, rngs = c
        key = jax.random.fold_in(rngs["key"], rngs["count"])
        x = jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x, 0.0)
        carry, y = lstm(params, carry, x)
        return (carry, {"key": rngs["key"], "count": rngs["count"] + jnp.uint32(1)}), y

    rngs = {"key": jax.random.key(2), "count": jnp.uint32(0)}
    return scan(step, ((ZERO, ZERO), rngs), xs)


def statistics(scan, params, xs):
    """Running mean and number of the states, beside the cell."""

    def step(c, x):
        carry, mean, count = c
        carry, y = lstm(params, carry, x)
        count = count + 1
        mean = mean + (y.mean(0) - mean) / count.astype(y.dtype)
        return (carry, mean, count), y - mean[None]

    return scan(step, ((ZERO, ZERO), jnp.zeros(WIDTH), jnp.int32(0)), xs)


def derivatives(scan, layer):
    def value(params, xs):
        results = layer(scan, params, xs)
        arrays = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((x**2).sum() for x in arrays), results

    return jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))(PARAMS, XS)


@pytest.mark.parametrize(
    ("layer", "mode"),
    [
        (counted_dropout, "newton, pcr"),
        (statistics, "auto"),
    ],
)
def test_layers(layer, mode):
    assert_same(derivatives(SCANS[mode], layer), derivatives(jax.lax.scan, layer), 1e-9)


@METHODS
def test_a_model_that_reads_what_it_wrote(scan):
    """It depends on the state which token comes next: as `jax.lax.scan`, or an error."""
    table = normal(5, 4, WIDTH)

    def generate(scan):
        def step(c, _):
            carry, token = c
            carry, y = lstm(PARAMS, carry, table[token])
            token = jnp.argmax(y @ table.T, axis=-1)
            return (carry, token), token

        return scan(step, ((ZERO, ZERO), jnp.array([0, 1])), None, TIME)

    if scan.keywords.get("method") == "newton":
        with pytest.raises(TypeError, match=r"init\[1\].*depends on the float"):
            generate(scan)
    else:
        assert_same(generate(scan), generate(jax.lax.scan))
