"""A gated recurrent network that samples waves from its own output.

A chain that amplifies differences before it settles.

Trained to predict the next value of noisy waves of two tones, then run on what it has drawn itself.
Where its states are, such a chain is stable; far from there it is not, and that is where iterates
of Newton's method go. The test case of Gonzalez et al., *Towards scalable and stable
parallelization of nonlinear RNNs* (NeurIPS 2024), section 6.2, in small.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

PERIODS = ((1.0, 20.0), (0.5, 50.0))  # amplitude, steps
NOISE = 0.1
HIDDEN, BATCH, LENGTH, RATE = 4, 16, 200, 1e-2
Parameters = dict[str, Array]


def cell(parameters: Parameters, h: Array, y: Array) -> tuple[Array, Array, Array]:
    """The next hidden state, and mean and log deviation of the next value."""
    n = h.shape[-1]
    a, b = h @ parameters["h"], _affine(y, parameters["y"], parameters["bias"])
    reset, update = (
        jax.nn.sigmoid(a[..., :n] + b[..., :n]),
        jax.nn.sigmoid(a[..., n : 2 * n] + b[..., n : 2 * n]),
    )
    h = update * h + (1 - update) * jnp.tanh(b[..., 2 * n :] + reset * a[..., 2 * n :])
    out = h @ parameters["out"]
    return h, out[..., :1], out[..., 1:]


def _affine(y: Array, weight: Array, bias: Array) -> Array:
    return y @ weight + jnp.broadcast_to(bias, (*y.shape[:-1], bias.shape[-1]))


def _waves(key: Array) -> Array:
    """``[BATCH, LENGTH]``"""
    of_phase, of_noise = jax.random.split(key)
    phases = jax.random.uniform(of_phase, (len(PERIODS), BATCH, 1), jnp.float32, maxval=2 * jnp.pi)
    time = jnp.arange(LENGTH, dtype=jnp.float32)[None]
    clean = sum(
        size * jnp.sin(2 * jnp.pi * time / period + phase)
        for (size, period), phase in zip(PERIODS, phases, strict=True)
    )
    return clean + NOISE * jax.random.normal(of_noise, (BATCH, LENGTH), jnp.float32)


def _loss(parameters: Parameters, ys: Array) -> Array:
    """The negative log likelihood of each value, given those before it."""

    def body(h: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        now, after = pair
        h, mean, deviation = cell(parameters, h, now[:, None])
        return h, (
            deviation + 0.5 * jnp.square((after[:, None] - mean) * jnp.exp(-deviation))
        ).mean()

    return lax.scan(
        body, jnp.zeros((BATCH, parameters["h"].shape[0]), jnp.float32), (ys.T[:-1], ys.T[1:])
    )[1].mean()


@partial(jax.jit, static_argnums=(1, 2))
def train(seed: int, hidden: int = HIDDEN, steps: int = 1000) -> Parameters:
    """Trained with Adam from random weights; a few seconds on two cores."""
    keys = jax.random.split(jax.random.key(seed), 5)

    def uniform(key: Array, *shape: int) -> Array:
        return hidden**-0.5 * jax.random.uniform(key, shape, jnp.float32, minval=-1.0, maxval=1.0)

    start = {
        "y": uniform(keys[0], 1, 3 * hidden),
        "h": uniform(keys[1], hidden, 3 * hidden),
        "bias": uniform(keys[2], 3 * hidden),
        "out": uniform(keys[3], hidden, 2),
    }

    def body(carry: Any, step: Array) -> tuple[Any, None]:
        parameters, mean, square = carry
        gradient = jax.grad(_loss)(parameters, _waves(jax.random.fold_in(keys[4], step)))
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, gradient)
        count = step.astype(jnp.float32) + 1
        rate = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        parameters = jax.tree.map(
            lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), parameters, mean, square
        )
        return (parameters, mean, square), None

    zeros = jax.tree.map(jnp.zeros_like, start)
    trained: Parameters = lax.scan(body, (start, zeros, zeros), jnp.arange(steps))[0][0]
    return trained


def sampling_chain(
    parameters: Parameters, length: int, seed: int = 0
) -> tuple[Callable[[Array, Array], Array], Array, Array]:
    """``(step, inputs, z0)``.

    The state is the hidden state and the last value, the input is the noise of the next.
    """

    def step(z: Array, noise: Array) -> Array:
        h, mean, deviation = cell(parameters, z[:-1], z[-1:])
        return jnp.concatenate([h, mean + jnp.exp(deviation) * noise])

    noise = np.random.default_rng(seed).normal(size=(length, 1)).astype(np.float32)
    return step, jnp.asarray(noise), jnp.zeros(parameters["h"].shape[0] + 1, jnp.float32)
