"""A gated recurrent network that samples waves from its own output.

A chain that amplifies differences before it settles.

Trained to predict the next value of noisy waves of two tones, then run on what it has drawn itself.
Where its states are, such a chain is stable; far from there it is not, and that is where iterates
of Newton's method go. The test case of Gonzalez et al., *Towards scalable and stable
parallelization of nonlinear RNNs* (NeurIPS 2024), section 6.2, in small.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from experiments.models import cells
from experiments.models.chains import Model
from experiments.models.training import Params, train

PERIODS = ((1.0, 20.0), (0.5, 50.0))  # amplitude, steps
NOISE = 0.1
HIDDEN, BATCH, LENGTH, RATE, STEPS = 4, 16, 200, 1e-2, 1000


def following(params: Params, h: Array, y: Array) -> tuple[Array, Array, Array]:
    """The next hidden state, and mean and log deviation of the next value."""
    h = cells.gru(params, h, y)
    out = h @ params["out"]
    return h, out[..., :1], out[..., 1:]


def _waves(key: Array) -> Array:
    """``[LENGTH, BATCH]``"""
    of_phase, of_noise = jax.random.split(key)
    phases = jax.random.uniform(of_phase, (len(PERIODS), 1, BATCH), jnp.float32, maxval=2 * jnp.pi)
    time = jnp.arange(LENGTH, dtype=jnp.float32)[:, None]
    clean = sum(
        size * jnp.sin(2 * jnp.pi * time / period + phase)
        for (size, period), phase in zip(PERIODS, phases, strict=True)
    )
    return clean + NOISE * jax.random.normal(of_noise, (LENGTH, BATCH), jnp.float32)


def _loss(params: Params, key: Array) -> Array:
    """The negative log likelihood of each value, given those before it."""
    ys = _waves(key)[..., None]

    def body(h: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        h, mean, deviation = following(params, h, pair[0])
        return h, (deviation + 0.5 * jnp.square((pair[1] - mean) * jnp.exp(-deviation))).mean()

    start = jnp.zeros((BATCH, HIDDEN), jnp.float32)
    losses: Array = lax.scan(body, start, (ys[:-1], ys[1:]))[1]
    return losses.mean()


def trained(seed: int, steps: int = STEPS) -> Params:
    """Weights from random ones; a few seconds on two cores."""
    out = np.random.default_rng(seed).uniform(-1, 1, (HIDDEN, 2)).astype(np.float32)
    first = cells.gru_weights(HIDDEN, 1, seed) | {"out": jnp.asarray(HIDDEN**-0.5 * out)}
    return train(_loss, first, steps, RATE, jax.random.key(seed))


def sampled(seed: int, length: int, steps: int = STEPS) -> Model:
    """The chain that samples: its state is the hidden state and the last value.

    The inputs are the noise of the next values.
    """
    params = trained(seed, steps)

    def step(z: Array, noise: Array) -> Any:
        h, mean, deviation = following(params, z[:-1], z[-1:])
        return jnp.concatenate([h, mean + jnp.exp(deviation) * noise])

    noise = np.random.default_rng(seed).normal(size=(length, 1)).astype(np.float32)
    return Model(step, jnp.asarray(noise), jnp.zeros(HIDDEN + 1, jnp.float32))
