"""Latent diffusion on scikit-learn's digits: an autoencoder, a diffusion model, a classifier.

The autoencoder maps 64 pixels to a few numbers (a small version of Rombach et al., CVPR 2022); the
diffusion model reads the time and the digit to draw (Ho et al., NeurIPS 2020). In pixel space the
autoencoder is the identity. All are networks of two hidden layers, trained once in seconds: their
weights are cached in ~/.cache/deeppcr-experiments, by a digest of settings and source.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.models import data, denoiser, training
from experiments.models.training import Params, affine, cached, normal, train

PIXELS, CLASSES = 64, 10
BATCH = 128


@dataclasses.dataclass(frozen=True)
class Training:
    """Sizes of the networks, and numbers of training steps on batches of 128 digits.

    Attributes:
        width: of the hidden layers of the diffusion model.
        steps: of its training.
        coder_width: of the hidden layers of the autoencoder and of the classifier.
        coder_steps: of the training of the autoencoder.
        judge_steps: of that of the classifier.
        seed: of weights, batches and noise.
    """

    width: int = 512
    steps: int = 4000
    coder_width: int = 256
    coder_steps: int = 3000
    judge_steps: int = 400
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Generator:
    """A trained autoencoder and diffusion model.

    Attributes:
        size: of the latents; 64 in pixel space.
        params: of the diffusion model.
        coder: of the autoencoder; None in pixel space.
    """

    size: int
    params: Params
    coder: Params | None

    def model(self, labels: Array) -> Callable[[Array, Array], Array]:
        """``model(x, t)``: the noise in ``x: [batch, size]`` at time ``t``, given ``labels``."""
        wanted = jax.nn.one_hot(labels, CLASSES, dtype=jnp.float32)
        return lambda x, t: denoiser.noise(self.params, x, t, wanted)

    def encode(self, images: Array) -> Array:
        """Latents ``[n, size]`` of images ``[n, 64]``; over the data, mean 0 and deviation 1."""
        return images if self.coder is None else _encode(self.coder, images)

    def decode(self, latents: Array) -> Array:
        """Images ``[n, 64]``, pixels from -1 to 1."""
        return jnp.clip(latents, -1, 1) if self.coder is None else _decode(self.coder, latents)


@cache
def generator(size: int, how: Training) -> Generator:
    """A generator trained on all digits, or read from the cache.

    Args:
        size: of the latents; 64 for the pixels themselves.
        how: settings of the training.
    """
    images, labels = data.pixels()
    of_coder, of_weights, of_batches = jax.random.split(jax.random.key(how.seed), 3)
    coder = None if size == PIXELS else _coder(size, how, jnp.asarray(images), of_coder)
    first = jax.jit(denoiser.first_weights, static_argnums=(0, 1, 3))(
        size, how.width, of_weights, CLASSES
    )
    untrained = Generator(size, first, coder)
    latents, wanted = (
        untrained.encode(jnp.asarray(images)),
        jnp.asarray(np.eye(CLASSES, dtype=np.float32)[labels]),
    )

    def loss(params: Params, key: Array) -> Array:
        of_image, of_time, of_noise = jax.random.split(key, 3)
        chosen = jax.random.randint(of_image, (BATCH,), 0, len(latents))
        return denoiser.denoising_loss(params, latents[chosen], of_time, of_noise, wanted[chosen])

    def make() -> Params:
        return train(loss, first, how.steps, 2e-3, of_batches)

    return dataclasses.replace(untrained, params=cached(_name(f"latent{size}", how), first, make))


def _coder(size: int, how: Training, images: Array, key: Array) -> Params:
    """Weights of an autoencoder, with mean and deviation of the latents."""
    of_encoder, of_decoder, of_batches = jax.random.split(key, 3)
    first = {
        **_first(of_encoder, "encode", PIXELS, how.coder_width, size),
        **_first(of_decoder, "decode", size, how.coder_width, PIXELS),
        "mean": jnp.zeros(size, jnp.float32),
        "deviation": jnp.ones(size, jnp.float32),
    }

    def loss(params: Params, key: Array) -> Array:
        of_image, of_noise = jax.random.split(key)
        x = images[jax.random.randint(of_image, (BATCH,), 0, len(images))]
        z = _network(params, "encode", x)
        # Latents that are close have to decode to similar images.
        blurred = z + 0.1 * jax.random.normal(of_noise, z.shape, z.dtype)
        again = jnp.tanh(_network(params, "decode", blurred))
        return jnp.square(again - x).mean() + 1e-3 * jnp.square(z).mean()

    def make() -> Params:
        params = train(loss, first, how.coder_steps, 2e-3, of_batches)
        latents = jax.jit(_network, static_argnums=1)(params, "encode", images)
        return params | {"mean": latents.mean(axis=0), "deviation": latents.std(axis=0)}

    return cached(_name(f"coder{size}", how), first, make)


def judge(how: Training) -> Callable[[np.ndarray], np.ndarray]:
    """A classifier trained on all digits, or read from the cache.

    It maps images ``[n, 64]``, pixels from -1 to 1, to the probability of each class, ``[n, 10]``.
    """
    images, labels = map(jnp.asarray, data.pixels())
    of_weights, of_batches = jax.random.split(jax.random.key(how.seed + 1))
    first = _first(of_weights, "judge", PIXELS, how.coder_width, CLASSES)

    def loss(params: Params, key: Array) -> Array:
        of_image, of_noise = jax.random.split(key)
        chosen = jax.random.randint(of_image, (BATCH,), 0, len(images))
        noise = 0.2 * jax.random.normal(of_noise, (BATCH, PIXELS), jnp.float32)
        scores = _classify(params, images[chosen] + noise)
        return -jnp.take_along_axis(scores, labels[chosen][:, None], axis=1).mean()

    def make() -> Params:
        return train(loss, first, how.judge_steps, 2e-3, of_batches)

    params = cached(_name("judge", how), first, make)
    return lambda images: np.exp(_classify(params, jnp.asarray(images)))


def _name(what: str, how: Training) -> str:
    """Of a file in the cache, by all that its weights depend on."""
    files = [str(module.__file__) for module in (denoiser, training)]
    sources = b"".join(Path(file).read_bytes() for file in (*files, __file__))
    return f"{what}-{hashlib.sha256(repr(how).encode() + sources).hexdigest()[:16]}"


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _first(key: Array, name: str, size: int, width: int, out: int) -> Params:
    """Weights of a network of two hidden layers, before training."""
    sizes = {"in": (size, width), "hidden": (width, width), "out": (width, out)}
    keys = jax.random.split(key, 3)
    weights = {
        f"{name} {layer}": normal(key, *shape)
        for key, (layer, shape) in zip(keys, sizes.items(), strict=True)
    }
    return weights | {
        f"{name} bias {layer}": jnp.zeros(shape[1], jnp.float32) for layer, shape in sizes.items()
    }


def _network(params: Params, name: str, x: Array) -> Array:
    for layer in ("in", "hidden"):
        x = jax.nn.silu(affine(x, params[f"{name} {layer}"], params[f"{name} bias {layer}"]))
    return affine(x, params[f"{name} out"], params[f"{name} bias out"])


@jax.jit
def _encode(coder: Params, images: Array) -> Array:
    return (_network(coder, "encode", images) - coder["mean"][None]) / coder["deviation"][None]


@jax.jit
def _decode(coder: Params, latents: Array) -> Array:
    return jnp.tanh(
        _network(coder, "decode", latents * coder["deviation"][None] + coder["mean"][None])
    )


@jax.jit
def _classify(params: Params, images: Array) -> Array:
    return jax.nn.log_softmax(_network(params, "judge", images))
