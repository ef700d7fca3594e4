"""Layers whose weights have the names and shapes of torch.

Channels are axis 1 of an image, and the last axis of tokens or of an embedding. The weight of a
convolution is [out, in, height, width], that of a linear layer [out, in]. The parameters are zeros
until they are loaded. Sums over many entries are taken in float32 or better.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax


def along(axis: int, vector: Array, x: Array) -> Array:
    """A number for each entry along an axis of ``x``, to be combined with ``x``."""
    return vector.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def in_wide(x: Array) -> Array:
    """In float32, if its dtype has fewer bits."""
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


def normalized(x: Array, eps: float) -> Array:
    """With mean 0 and variance 1 along the last axis.

    The variance is that of the centred entries: a difference of two means would cancel.
    """
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)


class Linear(nnx.Module):
    """A linear map: [..., inputs] -> [..., outputs]."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        self.weight = nnx.Param(jnp.zeros((outputs, inputs)))
        self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None

    def __call__(self, x: Array) -> Array:
        y = jnp.einsum("...i,oi->...o", x, self.weight[...])
        return y if self.bias is None else y + along(-1, self.bias[...], y)


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
        return y + along(1, self.bias[...], y)


class GroupNorm(nnx.Module):
    """Group normalisation (Wu and He, ECCV 2018) over a group of channels and all pixels."""

    def __init__(self, channels: int, groups: int, eps: float) -> None:
        self.weight = nnx.Param(jnp.zeros(channels))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.groups, self.eps = groups, eps

    def __call__(self, x: Array) -> Array:
        grouped = in_wide(x).reshape(x.shape[0], self.groups, -1)
        normal = normalized(grouped, self.eps).reshape(x.shape)
        weight, bias = in_wide(self.weight[...]), in_wide(self.bias[...])
        return (normal * along(1, weight, x) + along(1, bias, x)).astype(x.dtype)


class LayerNorm(nnx.Module):
    """Layer normalisation (Ba et al., arXiv 1607.06450) over the last axis."""

    def __init__(self, channels: int, eps: float, *, affine: bool = False) -> None:
        self.weight = nnx.Param(jnp.zeros(channels)) if affine else None
        self.bias = nnx.Param(jnp.zeros(channels)) if affine else None
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        normal = normalized(in_wide(x), self.eps)
        if self.weight is not None and self.bias is not None:
            weight, bias = in_wide(self.weight[...]), in_wide(self.bias[...])
            normal = normal * along(-1, weight, x) + along(-1, bias, x)
        return normal.astype(x.dtype)


class Attention(nnx.Module):
    """Attention (Vaswani et al., NeurIPS 2017) of tokens, [batch, tokens, channels].

    To each other, or to those of a context.

    Args:
        channels: the number of channels.
        heads: the number of heads.
        head: the number of channels of a head.
        context: the number of channels of a context; None for that of ``channels``.
        bias: whether queries, keys and values have a bias.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        head: int,
        *,
        context: int | None = None,
        bias: bool = True,
    ) -> None:
        self.heads = heads
        self.to_q = Linear(channels, heads * head, bias=bias)
        self.to_k = Linear(context or channels, heads * head, bias=bias)
        self.to_v = Linear(context or channels, heads * head, bias=bias)
        self.to_out = nnx.List([Linear(heads * head, channels)])

    def __call__(self, x: Array, context: Array | None = None) -> Array:
        read = x if context is None else context
        query, key, value = (
            layer(tokens).reshape(*tokens.shape[:2], self.heads, -1).swapaxes(1, 2)
            for layer, tokens in ((self.to_q, x), (self.to_k, read), (self.to_v, read))
        )
        scores = jnp.einsum("bhqc,bhkc->bhqk", query * query.shape[-1] ** -0.5, key)
        weights = jax.nn.softmax(in_wide(scores), axis=-1).astype(x.dtype)
        found = jnp.einsum("bhqk,bhkc->bhqc", weights, value)
        return self.to_out[0](found.swapaxes(1, 2).reshape(*x.shape[:2], -1))
