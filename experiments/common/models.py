"""Models as chains: ``(step, inputs, z0)`` with ``z_l = step(z_{l-1}, x_l)``, in float32 and with nothing of deeppcr in them.

Two are trained, on scikit-learn's digits, because random weights say little of how a solver does on weights that have learnt:
a diffusion model and a residual network. Both train in seconds, and their weights are kept in ~/.cache/deeppcr-experiments.
"""

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.common import data

CACHE = Path.home() / ".cache" / "deeppcr-experiments"
PIXELS, CLASSES = 64, 10
NOISE_LEVELS = 1000
EMBEDDING = 64  # sines and cosines of the time

Params = dict[str, Array]


class Model(NamedTuple):
    """A chain in three parts: `deeppcr.Chain(step, inputs)` and ``z0``, or ``jax.lax.scan``."""

    step: Callable[[Any, Any], Any]
    inputs: Any
    z0: Any


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gelu": jax.nn.gelu}


def diffusion_params(width: int = 512, steps: int = 2000, seed: int = 0) -> Params:
    """Weights of `noise`, trained to tell the noise in noisy digits; about 15 s on two CPU cores, once.

    Args:
        width: of the two hidden layers.
        steps: of training, with 128 digits each.
        seed: of the first weights and of the batches.
    """
    keys = jax.random.split(jax.random.key(seed), 6)
    first = {
        "in": _normal(keys[0], PIXELS, width),
        "time": _normal(keys[1], EMBEDDING, width),
        "hidden": _normal(keys[2], width, width),
        "time2": _normal(keys[3], EMBEDDING, width),
        "out": 0.1 * _normal(keys[4], width, PIXELS),
        **{f"bias_{name}": jnp.zeros(width, jnp.float32) for name in ("in", "hidden")},
        "bias_out": jnp.zeros(PIXELS, jnp.float32),
    }

    def make() -> Params:
        images, levels = jnp.asarray(_pixels()), jnp.asarray(_signal_levels(), jnp.float32)

        def loss(params: Params, key: Array) -> Array:
            of_image, of_time, of_noise = jax.random.split(key, 3)
            x = images[jax.random.randint(of_image, (128,), 0, len(images))]
            t = jax.random.randint(of_time, (128,), 0, NOISE_LEVELS)
            eps = jax.random.normal(of_noise, x.shape, x.dtype)
            signal = jnp.broadcast_to(levels[t][:, None], x.shape)
            noisy = jnp.sqrt(signal) * x + jnp.sqrt(1 - signal) * eps
            guess = jax.vmap(lambda x, t: noise(params, x, t))(noisy, t.astype(jnp.float32))
            return jnp.square(guess - eps).mean()

        return _train(loss, first, steps, 2e-3, keys[5])

    return _cached(f"diffusion-width{width}-steps{steps}-seed{seed}", first, make)


def noise(params: Params, x: Array, t: Array) -> Array:
    """The noise that a network of two hidden layers sees in ``x: [*batch, 64]`` at time ``t``, a float scalar."""
    frequency = jnp.exp(jnp.arange(EMBEDDING // 2, dtype=jnp.float32) * (-math.log(1e4) / (EMBEDDING // 2)))
    time = jnp.concatenate([jnp.sin(t * frequency), jnp.cos(t * frequency)])
    h = jax.nn.silu(_affine(x, params["in"], params["bias_in"] + time @ params["time"]))
    h = jax.nn.silu(_affine(h, params["hidden"], params["bias_hidden"] + time @ params["time2"]))
    return _affine(h, params["out"], params["bias_out"])


def ddim_chain(params: Params, steps: int, key: Array, batch: tuple[int, ...] = ()) -> Model:
    """A deterministic sampler (DDIM, eta = 0), from noise drawn by ``key`` to digits.

    ``x_{t'} = A x + B noise(x, t)`` with ``A = sqrt(s'/s)``, ``B = sqrt(1 - s') - A sqrt(1 - s)``; ``s``, ``s'`` are the shares
    of the signal at ``t`` and ``t'``. The inputs are ``{"a": A_l, "b": B_l, "t": t_l}``, one scalar a step each.
    """
    levels = _signal_levels()
    times = np.arange(steps)[::-1] * NOISE_LEVELS // steps + NOISE_LEVELS // steps - 1
    now, then = levels[times], np.append(levels[times[1:]], 1.0)
    a = np.sqrt(then / now)
    b = np.sqrt(1 - then) - a * np.sqrt(1 - now)
    inputs = {"a": jnp.asarray(a, jnp.float32), "b": jnp.asarray(b, jnp.float32), "t": jnp.asarray(times, jnp.float32)}

    def step(x: Array, at: dict[str, Array]) -> Array:
        return at["a"] * x + at["b"] * noise(params, x, at["t"])

    return Model(step, inputs, jax.random.normal(key, (*batch, PIXELS), jnp.float32))


def residual_params(blocks: int = 100, width: int = 32, activation: str = "tanh", steps: int = 300, seed: int = 0) -> Params:
    """Weights of a residual network, trained a little to tell the digits apart; a few seconds, once.

    The blocks' own weights, ``in``, ``bias`` and ``out``, carry the blocks on axis 0.
    """
    keys = jax.random.split(jax.random.key(seed), 5)
    first = {
        "in": _normal(keys[0], blocks, width, width),
        "bias": jnp.zeros((blocks, width), jnp.float32),
        "out": _normal(keys[1], blocks, width, width),
        "encode": _normal(keys[2], PIXELS, width),
        "decode": _normal(keys[3], width, CLASSES),
    }

    def make() -> Params:
        split = data.digits()
        images, labels = jnp.asarray(split.train_x), jnp.asarray(split.train_y)
        step = _residual_block(blocks, activation)

        def loss(params: Params, key: Array) -> Array:
            chosen = jax.random.randint(key, (64,), 0, len(images))
            layers = {name: params[name] for name in ("in", "bias", "out")}
            z, _ = jax.lax.scan(lambda z, x: (step(z, x), None), images[chosen] @ params["encode"], layers)
            scores = jax.nn.log_softmax(z @ params["decode"])
            return -jnp.take_along_axis(scores, labels[chosen][:, None], axis=1).mean()

        return _train(loss, first, steps, 2e-3, keys[4])

    return _cached(f"residual-{activation}-blocks{blocks}-width{width}-steps{steps}-seed{seed}", first, make)


def residual_chain(
    blocks: int = 100, width: int = 32, activation: str = "tanh", steps: int = 300, seed: int = 0, batch: tuple[int, ...] = ()
) -> Model:
    """The trained network of `residual_params`, ``z + act(z W + b) V / sqrt(blocks)``, on digits that it has not seen.

    "gelu" normalises what goes into a block, as transformers do.
    """
    params = residual_params(blocks, width, activation, steps, seed)
    images = data.digits().test_x[: math.prod(batch)].reshape(*batch, PIXELS)
    layers = {name: params[name] for name in ("in", "bias", "out")}
    return Model(_residual_block(blocks, activation), layers, jnp.asarray(images) @ params["encode"])


def _residual_block(blocks: int, activation: str) -> Callable[[Array, Params], Array]:
    act = ACTIVATIONS[activation]
    prepare = _layer_norm if activation == "gelu" else lambda z: z

    def step(z: Array, layer: Params) -> Array:
        return z + act(_affine(prepare(z), layer["in"], layer["bias"])) @ layer["out"] / math.sqrt(blocks)

    return step


def gru_chain(n: int, length: int, key: Array, batch: tuple[int, ...] = (), gain: float = 1.0) -> Model:
    """A gated recurrent unit with ``n`` states and random weights, which reads random inputs; ``gain`` scales its own loop."""
    of_h, of_x, of_inputs = jax.random.split(key, 3)
    from_h, from_x = gain * _normal(of_h, n, 3 * n), _normal(of_x, n, 3 * n)
    bias = jnp.zeros(3 * n, jnp.float32)

    def step(h: Array, x: Array) -> Array:
        a, b = h @ from_h, _affine(x, from_x, bias)
        gates = jax.nn.sigmoid(a[..., : 2 * n] + b[..., : 2 * n])
        reset, update = gates[..., :n], gates[..., n:]
        return (1 - update) * jnp.tanh(b[..., 2 * n :] + reset * a[..., 2 * n :]) + update * h

    return Model(step, jax.random.normal(of_inputs, (length, *batch, n), jnp.float32), jnp.zeros((*batch, n), jnp.float32))


def lstm_chain(n: int, length: int, key: Array, batch: tuple[int, ...] = (), gain: float = 1.0) -> Model:
    """A long short-term memory with random weights; its state is ``(h, c)``, of ``n`` entries each."""
    of_h, of_x, of_inputs = jax.random.split(key, 3)
    from_h, from_x = gain * _normal(of_h, n, 4 * n), _normal(of_x, n, 4 * n)
    bias = jnp.zeros(4 * n, jnp.float32).at[n : 2 * n].set(1.0)  # remembers to begin with, as trained ones do

    def step(state: tuple[Array, Array], x: Array) -> tuple[Array, Array]:
        h, c = state
        i, f, g, o = jnp.split(h @ from_h + _affine(x, from_x, bias), 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    inputs = jax.random.normal(of_inputs, (length, *batch, n), jnp.float32)
    zeros = jnp.zeros((*batch, n), jnp.float32)
    return Model(step, inputs, (zeros, zeros))


def mlp_chain(width: int, length: int, activation: str, key: Array, batch: tuple[int, ...] = (), gain: float = 1.0) -> Model:
    """A stack of layers ``act(z W_l + b_l)``, each with random weights of its own; relu's are larger by sqrt(2)."""
    of_weights, of_bias, of_state = jax.random.split(key, 3)
    act = ACTIVATIONS[activation]
    scale = gain * (math.sqrt(2) if activation == "relu" else 1.0)
    layers = {
        "weight": scale * _normal(of_weights, length, width, width),
        "bias": 0.1 * jax.random.normal(of_bias, (length, width), jnp.float32),
    }
    z0 = jax.random.normal(of_state, (*batch, width), jnp.float32)
    return Model(lambda z, layer: act(_affine(z, layer["weight"], layer["bias"])), layers, z0)


def logistic_chain(length: int, rate: float = 3.9) -> Model:
    """The logistic map ``z <- r z (1 - z)``: chaotic at 3.9, where an error grows by about 1.6 a step."""
    rates = jnp.full((length, 1), rate, jnp.float32)
    return Model(lambda z, r: r * z * (1 - z), rates, jnp.full(1, 0.3, jnp.float32))


def _normal(key: Array, *shape: int) -> Array:
    """Matrices that keep the size of a vector."""
    return jax.random.normal(key, shape, jnp.float32) / math.sqrt(shape[-2])


def _affine(z: Array, weight: Array, bias: Array) -> Array:
    return z @ weight + jnp.broadcast_to(bias, (*z.shape[:-1], bias.shape[-1]))


def _layer_norm(z: Array) -> Array:
    centred = z - z.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-5)


def _pixels() -> np.ndarray:
    """All digits, pixels from -1 to 1: what a diffusion model is to make has no class and no test set."""
    from sklearn.datasets import load_digits

    pixels: np.ndarray = (load_digits().data / 8 - 1).astype(np.float32)
    return pixels


def _signal_levels() -> np.ndarray:
    """The share of the signal that is left at each of the 1000 times, for betas that grow linearly (Ho et al. 2020)."""
    return np.asarray(np.cumprod(1 - np.linspace(1e-4, 0.02, NOISE_LEVELS)))


def _train(loss: Callable[[Params, Array], Array], params: Params, steps: int, rate: float, key: Array) -> Params:
    """Adam (Kingma and Ba 2015) with a cosine schedule; ``loss(params, key)`` draws its batch by the key."""

    @jax.jit
    def update(params: Params, moments: tuple[Params, Params], index: Array) -> tuple[Params, tuple[Params, Params]]:
        gradient = jax.grad(loss)(params, jax.random.fold_in(key, index))
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
        square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], gradient)
        count = index.astype(jnp.float32) + 1
        now = rate * 0.5 * (1 + jnp.cos(math.pi * (count - 1) / steps))
        now = now * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        params = jax.tree.map(lambda p, m, v: p - now * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
        return params, (mean, square)

    zeros = jax.tree.map(jnp.zeros_like, params)
    moments = (zeros, zeros)
    for index in range(steps):
        params, moments = update(params, moments, np.int32(index))
    return params


def _cached(name: str, first: Params, make: Callable[[], Params]) -> Params:
    """What ``make`` returns, read back from a file if it was made before; ``first`` has its names and shapes."""
    path = CACHE / f"{name}.npz"
    try:
        with np.load(path) as file:
            params = {key: jnp.asarray(file[key]) for key in first}
        if all(params[key].shape == value.shape for key, value in first.items()):
            return params
    except Exception:  # whatever a file that is missing, cut short or of another kind raises: it is made again
        pass
    params = make()
    CACHE.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=CACHE, prefix=f".{name}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **jax.device_get(params))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return params
