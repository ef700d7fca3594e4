"""Models as chains.

``(step, inputs, z0)`` with ``z_l = step(z_{l-1}, x_l)``, in float32 and with nothing of deeppcr in
them.

Two are trained, on scikit-learn's digits, because random weights say little of how a solver does on
weights that have learnt: a diffusion model and a residual network. Both train in seconds, and their
weights are kept in ~/.cache/deeppcr-experiments.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.models import cells, data, denoiser
from experiments.models.training import Params, affine, cached, normal, train

PIXELS, CLASSES = 64, 10


class Model(NamedTuple):
    """A chain in three parts: `deeppcr.Chain(step, inputs)` and ``z0``, or ``jax.lax.scan``."""

    step: Callable[[Any, Any], Any]
    inputs: Any
    z0: Any

    @property
    def length(self) -> int:
        """L, the number of steps."""
        return len(jax.tree.leaves(self.inputs)[0])


def states(model: Model) -> Any:
    """All states of a chain, by `jax.lax.scan`."""

    step = lambda z, x: (model.step(z, x),) * 2  # noqa: E731
    return jax.lax.scan(step, model.z0, model.inputs)[1]


def diffusion_params(width: int = 512, steps: int = 2000, seed: int = 0) -> Params:
    """Weights of `denoiser.noise`, trained to predict the noise in noisy digits; cached."""
    key = jax.random.key(seed)
    first = denoiser.first_weights(PIXELS, width, key)

    def make() -> Params:
        images = jnp.asarray(data.pixels()[0])

        def loss(params: Params, key: Array) -> Array:
            of_image, of_time, of_noise = jax.random.split(key, 3)
            x = images[jax.random.randint(of_image, (128,), 0, len(images))]
            return denoiser.denoising_loss(params, x, of_time, of_noise)

        return train(loss, first, steps, 2e-3, jax.random.split(key, 6)[5])

    return cached(f"diffusion-width{width}-steps{steps}-seed{seed}", first, make)


def ddim_chain(params: Params, steps: int, key: Array) -> Model:
    """A deterministic sampler (DDIM, eta = 0), from noise drawn by ``key`` to digits.

    ``x_{t'} = A x + B noise(x, t)`` with ``A = sqrt(s'/s)``, ``B = sqrt(1 - s') - A sqrt(1 - s)``;
    ``s``, ``s'`` are the shares of the signal at ``t`` and ``t'``. The inputs are ``{"a": A_l, "b":
    B_l, "t": t_l}``, one scalar a step each.
    """
    levels = denoiser.signal_levels()
    times = (
        np.arange(steps)[::-1] * denoiser.NOISE_LEVELS // steps + denoiser.NOISE_LEVELS // steps - 1
    )
    now, then = levels[times], np.append(levels[times[1:]], 1.0)
    a = np.sqrt(then / now)
    b = np.sqrt(1 - then) - a * np.sqrt(1 - now)
    inputs = {
        "a": jnp.asarray(a, jnp.float32),
        "b": jnp.asarray(b, jnp.float32),
        "t": jnp.asarray(times, jnp.float32),
    }

    def step(x: Array, at: dict[str, Array]) -> Array:
        return at["a"] * x + at["b"] * denoiser.noise(params, x, at["t"])

    return Model(step, inputs, jax.random.normal(key, (PIXELS,), jnp.float32))


def residual_params(blocks: int = 100, width: int = 32, steps: int = 300, seed: int = 0) -> Params:
    """Weights of a residual network, trained a little to classify digits; cached.

    The blocks' own weights, ``in``, ``bias`` and ``out``, carry the blocks on axis 0.
    """
    keys = jax.random.split(jax.random.key(seed), 5)
    first = {
        "in": normal(keys[0], blocks, width, width),
        "bias": jnp.zeros((blocks, width), jnp.float32),
        "out": normal(keys[1], blocks, width, width),
        "encode": normal(keys[2], PIXELS, width),
        "decode": normal(keys[3], width, CLASSES),
    }

    def make() -> Params:
        split = data.digits()
        images, labels = jnp.asarray(split.train_x), jnp.asarray(split.train_y)
        step = _residual_block(blocks)

        def loss(params: Params, key: Array) -> Array:
            chosen = jax.random.randint(key, (64,), 0, len(images))
            layers = {name: params[name] for name in ("in", "bias", "out")}
            z, _ = jax.lax.scan(
                lambda z, x: (step(z, x), None), images[chosen] @ params["encode"], layers
            )
            scores = jax.nn.log_softmax(z @ params["decode"])
            return -jnp.take_along_axis(scores, labels[chosen][:, None], axis=1).mean()

        return train(loss, first, steps, 2e-3, keys[4])

    name = f"residual-tanh-blocks{blocks}-width{width}-steps{steps}-seed{seed}"
    return cached(name, first, make)


def residual_chain(blocks: int = 100, batch: tuple[int, ...] = ()) -> Model:
    """The trained ``z + tanh(z W + b) V / sqrt(blocks)``, on held-out digits."""
    params = residual_params(blocks)
    images = data.digits().test_x[: math.prod(batch)].reshape(*batch, PIXELS)
    layers = {name: params[name] for name in ("in", "bias", "out")}
    return Model(_residual_block(blocks), layers, jnp.asarray(images) @ params["encode"])


def _residual_block(blocks: int) -> Callable[[Array, Params], Array]:
    def step(z: Array, layer: Params) -> Array:
        moved = jnp.tanh(affine(z, layer["in"], layer["bias"])) @ layer["out"]
        return z + moved / math.sqrt(blocks)

    return step


def recurrent_chain(kind: str, n: int, length: int, key: Array) -> Model:
    """A "gru" or "lstm" with random weights, which reads random inputs.

    The forget gate of an LSTM is open at first, as in trained ones.
    """
    of_h, of_x, of_inputs = jax.random.split(key, 3)
    step, gates = (cells.gru, 3) if kind == "gru" else (cells.lstm, 4)
    weights = {"W": normal(of_x, n, gates * n), "U": normal(of_h, n, gates * n)}
    weights["b"] = weights["c"] = jnp.zeros(gates * n, jnp.float32)
    h = jnp.zeros(n, jnp.float32)
    if kind == "lstm":
        weights["b"] = weights["b"].at[n : 2 * n].set(1.0)
    inputs = jax.random.normal(of_inputs, (length, n), jnp.float32)
    return Model(partial(step, weights), inputs, h if kind == "gru" else (h, h))


def mlp_chain(width: int, length: int, activation: str, key: Array) -> Model:
    """A stack of layers ``act(z W_l + b_l)``, each with random weights of its own.

    Relu's are larger by sqrt(2).
    """
    of_weights, of_bias, of_state = jax.random.split(key, 3)
    act, scale = (jax.nn.relu, math.sqrt(2)) if activation == "relu" else (jnp.tanh, 1.0)
    layers = {
        "weight": scale * normal(of_weights, length, width, width),
        "bias": 0.1 * jax.random.normal(of_bias, (length, width), jnp.float32),
    }
    z0 = jax.random.normal(of_state, (width,), jnp.float32)
    return Model(lambda z, layer: act(affine(z, layer["weight"], layer["bias"])), layers, z0)


def logistic_chain(length: int, rate: float = 3.9) -> Model:
    """The logistic map ``z <- r z (1 - z)``.

    Chaotic at 3.9, where an error grows by about 1.6 a step.
    """
    rates = jnp.full((length, 1), rate, jnp.float32)
    return Model(lambda z, r: r * z * (1 - z), rates, jnp.full(1, 0.3, jnp.float32))
