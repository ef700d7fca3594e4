"""A small diffusion model.

A network that predicts the noise in noisy data, given the time (Ho et al., NeurIPS 2020).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.models.training import Params, affine, normal

NOISE_LEVELS = 1000
BETAS = (1e-4, 0.02)
EMBEDDING = 64  # sines and cosines of the time


def signal_levels() -> np.ndarray:
    """alphas_cumprod at each of the 1000 times, for linear betas."""
    return np.asarray(np.cumprod(1 - np.linspace(*BETAS, NOISE_LEVELS)))


def first_weights(size: int, width: int, key: Array, classes: int = 0) -> Params:
    """Weights of `noise` before training: two hidden layers of ``width``.

    ``classes`` > 0 for a conditional one.
    """
    keys = jax.random.split(key, 5)
    return {
        "in": normal(keys[0], size, width),
        "time": normal(keys[1], EMBEDDING + classes, width),
        "hidden": normal(keys[2], width, width),
        "time2": normal(keys[3], EMBEDDING + classes, width),
        "out": 0.1 * normal(keys[4], width, size),
        **{f"bias_{name}": jnp.zeros(width, jnp.float32) for name in ("in", "hidden")},
        "bias_out": jnp.zeros(size, jnp.float32),
    }


def noise(params: Params, x: Array, t: Array, wanted: Array | None = None) -> Array:
    """The predicted noise in ``x: [*batch, size]`` at time ``t``, a scalar.

    A class-conditional network takes the class as ``wanted: [*batch, classes]``, ones and zeros.
    """
    frequency = jnp.exp(
        jnp.arange(EMBEDDING // 2, dtype=jnp.float32) * (-math.log(1e4) / (EMBEDDING // 2))
    )
    angle = t.astype(jnp.float32) * frequency
    about = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)])
    if wanted is not None:
        about = jnp.concatenate(
            [jnp.broadcast_to(about, (*wanted.shape[:-1], EMBEDDING)), wanted], axis=-1
        )
    h = jax.nn.silu(affine(x, params["in"], affine(about, params["time"], params["bias_in"])))
    h = jax.nn.silu(
        affine(h, params["hidden"], affine(about, params["time2"], params["bias_hidden"]))
    )
    return affine(h, params["out"], params["bias_out"])


def denoising_loss(
    params: Params, x: Array, of_time: Array, of_noise: Array, wanted: Array | None = None
) -> Array:
    """The mean square of what `noise` misses in ``x.

    [batch, size]``, with times and noise drawn by two keys.
    """
    levels = jnp.asarray(signal_levels(), jnp.float32)
    t = jax.random.randint(of_time, (len(x),), 0, NOISE_LEVELS)
    eps = jax.random.normal(of_noise, x.shape, x.dtype)
    signal = jnp.broadcast_to(levels[t][:, None], x.shape)
    noisy = jnp.sqrt(signal) * x + jnp.sqrt(1 - signal) * eps
    guess = jax.vmap(lambda *each: noise(params, *each))(
        noisy, t, *(() if wanted is None else (wanted,))
    )
    return jnp.square(guess - eps).mean()
