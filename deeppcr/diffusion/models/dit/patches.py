"""Images as tokens, and back: squares of pixels, with their position.

The position is that of diffusers: sines and cosines of the column, and of the row, with
frequencies in a geometric sequence from 1 to 1/10000.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.dit.config import DiTConfig
from deeppcr.diffusion.models.embeddings import SLOWEST
from deeppcr.diffusion.models.layers import Conv, in_wide


class Patches(nnx.Module):
    """[batch, channels, height, width] -> tokens [batch, rows, columns, channels]."""

    def __init__(self, config: DiTConfig) -> None:
        self.proj = Conv(
            config.in_channels, config.width, config.patch_size, stride=config.patch_size
        )
        self.side = config.sample_size // config.patch_size

    def __call__(self, x: Array) -> Array:
        tokens = in_wide(jnp.moveaxis(self.proj(x), 1, -1))
        rows, columns, channels = tokens.shape[1:]
        row = jnp.asarray(waves(rows, self.side, channels // 2), tokens.dtype)
        column = jnp.asarray(waves(columns, self.side, channels // 2), tokens.dtype)
        position = jnp.concatenate(jnp.broadcast_arrays(column[None], row[:, None]), axis=-1)
        return (tokens + position[None]).astype(x.dtype)


def waves(count: int, side: int, size: int) -> np.ndarray:
    """Sines and cosines of ``count`` positions, from 0 to ``side``: [count, size], float64."""
    exponents = np.arange(size // 2) / (size // 2)
    angles = (np.arange(count) * side / count)[:, None] * SLOWEST**-exponents
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def image(tokens: Array, patch: int) -> Array:
    """Tokens [batch, rows, columns, patch * patch * channels] -> images."""
    batch, rows, columns, _ = tokens.shape
    pixels = tokens.reshape(batch, rows, columns, patch, patch, -1)
    return jnp.einsum("bhwijc->bchiwj", pixels).reshape(batch, -1, rows * patch, columns * patch)
