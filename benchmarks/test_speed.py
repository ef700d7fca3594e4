"""Ten cases in which the default must not be slower than `jax.lax.scan`: ``make speed``.

pytest-benchmark prints the times of the default; ``--benchmark-autosave`` keeps them.
"""

import time

import jax
import jax.numpy as jnp
import pytest

import deeppcr

T = 2000


def loss(weights, xs, scan):
    """The mean square of the states of a GRU."""

    def step(h, x):
        of_x, of_h = jnp.split(x, 3, axis=-1), jnp.split(h @ weights, 3, axis=-1)
        reset, update = (jax.nn.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
        h = update * h + (1 - update) * jnp.tanh(of_x[2] + reset * of_h[2])
        return h, h

    return jnp.square(scan(step, jnp.zeros((xs.shape[1], len(weights))), xs)[1]).mean()


def seconds(program, *arguments):
    """The time of one call."""
    begin = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.perf_counter() - begin


@pytest.mark.parametrize("direction", ["forward", "gradient"])
@pytest.mark.parametrize(("units", "batch"), [(4, 1), (4, 8), (8, 1), (16, 1), (16, 8)])
def test_the_default_is_no_slower_than_lax_scan(benchmark, units, batch, direction):
    """The fastest call counts: noise only adds time."""
    of = jax.grad if direction == "gradient" else lambda function: function
    ours, loop = (
        jax.jit(of(lambda weights, xs, scan=scan: loss(weights, xs, scan)))
        for scan in (deeppcr.scan, jax.lax.scan)
    )
    weights = 0.5 * jax.random.normal(jax.random.key(0), (units, 3 * units))
    xs = jax.random.normal(jax.random.key(1), (T, batch, 3 * units))
    assert jnp.allclose(ours(weights, xs), loop(weights, xs), rtol=1e-3, atol=1e-5)
    least = min(seconds(loop, weights, xs) for _ in range(20))
    benchmark.pedantic(lambda: jax.block_until_ready(ours(weights, xs)), rounds=20)
    benchmark.extra_info["over lax.scan"] = least / benchmark.stats.stats.min
    assert benchmark.stats.stats.min <= least
