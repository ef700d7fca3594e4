"""Flax's layers as diffusers sets them up, and what calls are checked for.

Attributes have the names of diffusers, since weights are stored under their paths. Weights are
loaded, so their first values do not matter. Channels are the last axis.
"""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from deeppcr.diffusion.output import precise

SLOWEST = 10_000  # the ratio of the first frequency to the one past the last
M = TypeVar("M", bound=nnx.Module)

zeros = nnx.initializers.zeros
RNGS: Any = SimpleNamespace(params=lambda: None)  # which zeros do not use


def _with_zeros(kind: Callable[..., M], **options: Any) -> Callable[..., M]:
    return lambda *sizes, **more: kind(*sizes, **options, **more, rngs=RNGS)


linear = _with_zeros(nnx.Linear, kernel_init=zeros)
# Rows in the dtype that is loaded, and not that of the zeros.
embed = _with_zeros(nnx.Embed, embedding_init=zeros, promote_dtype=lambda arrays, **_: arrays)
# The difference of two means, which flax takes by default for a variance, cancels.
group_norm = _with_zeros(nnx.GroupNorm, use_fast_variance=False)
gelu = partial(jax.nn.gelu, approximate=False)


def conv(inputs: int, outputs: int, size: int = 3, **options: Any) -> nnx.Conv:
    """A convolution that keeps the resolution, unless the options say otherwise."""
    options = {"padding": size // 2, "kernel_init": zeros, "rngs": RNGS} | options
    return nnx.Conv(inputs, outputs, (size, size), **options)


class Attention(nnx.Module):
    """Attention (Vaswani et al., NeurIPS 2017) of the pixels of an image to each other.

    ``(x + attention(norm(x))) / scale``. ``head`` is the number of channels of a head; as many
    heads as fit into the channels.
    """

    def __init__(
        self, channels: int, head: int | None, groups: int | None, eps: float, scale: float = 1
    ) -> None:
        self.heads = channels // (head or channels)
        width = self.heads * (head or channels)
        self.to_q = linear(channels, width)
        self.to_k = linear(channels, width)
        self.to_v = linear(channels, width)
        self.to_out = nnx.List([linear(width, channels)])
        self.group_norm = groups and group_norm(channels, num_groups=groups, epsilon=eps)
        self.scale = scale

    def __call__(self, x: Array) -> Array:
        normal = self.group_norm(x) if self.group_norm else x
        pixels = normal.reshape(x.shape[0], -1, x.shape[-1])
        query, key, value = (
            layer(pixels).reshape(*pixels.shape[:2], self.heads, -1)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        scores = jnp.einsum("bqhc,bkhc->bhqk", query * query.shape[-1] ** -0.5, key)
        weights = jax.nn.softmax(scores.astype(precise(x.dtype))).astype(x.dtype)
        attended = jnp.einsum("bhqk,bkhc->bqhc", weights, value)
        out = self.to_out[0](attended.reshape(*pixels.shape[:2], -1))
        return (x + out.reshape(x.shape)) / self.scale


def waves(t: Array, size: int, *, shift: float = 0, flip: bool = True) -> Array:
    """Features of times, float32: [batch] -> [batch, size] (Ho et al., NeurIPS 2020).

    Sines and cosines with frequencies in a geometric sequence from 1 to 1/10000.

    Args:
        t: the times.
        size: the number of features.
        shift: subtracted from the number of frequencies in their exponents.
        flip: whether cosines come before sines.
    """
    half = size // 2
    exponents = np.arange(half, dtype=np.float32) * np.float32(-math.log(SLOWEST))
    angles = t.astype(jnp.float32)[:, None] * np.exp(exponents / np.float32(half - shift))[None]
    both = [jnp.sin(angles), jnp.cos(angles)]
    return jnp.pad(jnp.concatenate(both[:: -1 if flip else 1], axis=1), [(0, 0), (0, size % 2)])


class TwoLayers(nnx.Module):
    """Linear, activation, linear, in the dtype of the parameters: [batch, inputs or outputs]."""

    def __init__(
        self, inputs: int, outputs: int, act: Callable[[Array], Array] = jax.nn.silu
    ) -> None:
        self.linear_1 = linear(inputs, outputs)
        self.linear_2 = linear(outputs, outputs)
        self.act = act

    def __call__(self, x: Array) -> Array:
        return self.linear_2(self.act(self.linear_1(x.astype(self.linear_1.kernel.dtype))))


def check_images(x: Array, channels: int, factor: int) -> None:
    """Raise unless ``x`` is a batch of images whose sides are multiples of ``factor``."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x has dtype {x.dtype}, expected a float.")
    if x.ndim != 4 or x.shape[1] != channels or x.shape[2] % factor or x.shape[3] % factor:
        raise ValueError(
            f"x has shape {list(x.shape)}, expected [batch, {channels}, height, width], height and "
            f"width multiples of {factor}."
        )


def as_batch(name: str, numbers: Any, x: Array) -> Array:
    """One number, or one for each image, as [1] or [batch]."""
    if numbers is None:
        raise TypeError(f"{name} is None, expected a number for each image, which the model reads.")
    numbers = jnp.asarray(numbers)
    if numbers.shape not in ((), (1,), x.shape[:1]):
        raise ValueError(
            f"{name} has shape {list(numbers.shape)}, expected a scalar or [{x.shape[0]}], one for "
            "each image."
        )
    return numbers.reshape(-1)
