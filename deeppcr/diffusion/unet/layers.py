"""The layers of a UNet. Channels are axis 1 everywhere, and weights have the shapes of torch.

A convolution has [out, in, height, width], a linear layer [out, in]. The parameters are zeros until
they are loaded. Sums over many entries are taken in float32 or better.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax


def along_channels(vector: Array, x: Array) -> Array:
    """A number for each channel, to be combined with ``x: [batch, channels, ...]``."""
    return vector.reshape((1, -1) + (1,) * (x.ndim - 2))


def in_wide(x: Array) -> Array:
    """In float32, if its dtype has fewer bits."""
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


class Linear(nnx.Module):
    """A linear map of the channels: [batch, inputs, ...] -> [batch, outputs, ...]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = nnx.Param(jnp.zeros((outputs, inputs)))
        self.bias = nnx.Param(jnp.zeros(outputs))

    def __call__(self, x: Array) -> Array:
        y = jnp.einsum("bi...,oi->bo...", x, self.weight[...])
        return y + along_channels(self.bias[...], y)


class Conv(nnx.Module):
    """A convolution: [batch, inputs, height, width] -> [batch, outputs, height', width'].

    ``padding`` is that before and after each side.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        *,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        self.weight = nnx.Param(jnp.zeros((outputs, inputs, size, size)))
        self.bias = nnx.Param(jnp.zeros(outputs))
        self.stride, self.padding = stride, padding

    def __call__(self, x: Array) -> Array:
        layout = ("NCHW", "OIHW", "NCHW")
        strides, padding = (self.stride,) * 2, (self.padding,) * 2
        y = lax.conv_general_dilated(
            x, self.weight[...], strides, padding, dimension_numbers=layout
        )
        return y + along_channels(self.bias[...], y)


class GroupNorm(nnx.Module):
    """Group normalisation (Wu and He, ECCV 2018) over a group of channels and all pixels.

    The variance is that of the centred entries: a difference of two means would cancel.
    """

    def __init__(self, channels: int, groups: int, eps: float) -> None:
        self.weight = nnx.Param(jnp.zeros(channels))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.groups, self.eps = groups, eps

    def __call__(self, x: Array) -> Array:
        grouped = in_wide(x).reshape(x.shape[0], self.groups, -1)
        centred = grouped - grouped.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        normal = (centred * lax.rsqrt(variance + self.eps)).reshape(x.shape)
        weight, bias = in_wide(self.weight[...]), in_wide(self.bias[...])
        return (normal * along_channels(weight, x) + along_channels(bias, x)).astype(x.dtype)


class Attention(nnx.Module):
    """Attention of pixels (Vaswani et al., NeurIPS 2017): ``(x + attention(norm(x))) / scale``.

    Args:
        channels: the number of channels of the image.
        head: the number of channels of a head; there are as many heads as fit into the channels.
        groups: the groups of the norm, or None without a norm.
        eps: of the norm.
        scale: the divisor of the result.
    """

    def __init__(
        self, channels: int, head: int, groups: int | None, eps: float, scale: float = 1
    ) -> None:
        self.heads, self.scale = channels // head, scale
        inner = self.heads * head
        self.group_norm = None if groups is None else GroupNorm(channels, groups, eps)
        self.to_q = Linear(channels, inner)
        self.to_k = Linear(channels, inner)
        self.to_v = Linear(channels, inner)
        self.to_out = nnx.List([Linear(inner, channels)])

    def __call__(self, x: Array) -> Array:
        batch, channels, height, width = x.shape
        pixels = x.reshape(batch, channels, height * width)
        normal = pixels if self.group_norm is None else self.group_norm(pixels)
        query, key, value = (
            layer(normal).reshape(batch, self.heads, -1, height * width)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        scores = jnp.einsum("bhcq,bhck->bhqk", query * query.shape[2] ** -0.5, key)
        weights = jax.nn.softmax(in_wide(scores), axis=-1).astype(x.dtype)
        found = jnp.einsum("bhqk,bhck->bhcq", weights, value).reshape(batch, -1, height * width)
        return (x + self.to_out[0](found).reshape(x.shape)) / self.scale
