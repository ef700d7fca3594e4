"""The embedding of a time or a label in a UNet, by its configuration."""

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.embeddings import Positional, Rows, TwoLayers
from deeppcr.diffusion.models.unet.config import UNetConfig


class Fourier(nnx.Module):
    """Random frequencies of the logarithm (Song et al., ICLR 2021): [batch] -> [batch, 2 size]."""

    def __init__(self, size: int) -> None:
        self.weight = nnx.Param(jnp.zeros(size))

    def __call__(self, t: Array) -> Array:
        frequencies = self.weight[...].astype(jnp.float32)
        angles = jnp.log(t.astype(jnp.float32))[:, None] * frequencies[None] * (2 * math.pi)
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


def time_projection(config: UNetConfig) -> Any:
    """The layer that maps a time to ``config.time_features`` numbers."""
    if config.time_embedding_type == "learned":
        assert config.num_train_timesteps is not None  # as the config has checked
        return Rows(config.num_train_timesteps, config.block_out_channels[0])
    size = config.block_out_channels[0]
    if config.time_embedding_type == "fourier":
        return Fourier(size)
    return Positional(size, shift=config.freq_shift, flip=config.flip_sin_to_cos)


def class_embedding(config: UNetConfig) -> Any:
    """The layer whose output for labels is added to the embedding of the time, or None."""
    if config.class_embed_type == "timestep":
        return TwoLayers(config.time_features, config.time_channels)
    if config.class_embed_type == "identity" or config.num_class_embeds is None:
        return None
    return Rows(config.num_class_embeds, config.time_channels)
