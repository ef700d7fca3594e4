"""The blocks of a UNet: residual and attention layers, and changes of the resolution.

Attention layers are called as ``layer(x, *context)``. Attributes have the names of diffusers, since
weights are stored under their paths.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.layers import Conv, GroupNorm, Linear
from deeppcr.diffusion.models.unet.fields import Kind, UNetFields

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
}

Attend = Callable[[], nnx.Module]  # makes an attention layer


def halve(x: Array) -> Array:
    """The mean of each two by two pixels."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, channels, height // 2, 2, width // 2, 2).mean((3, 5))


def double(x: Array) -> Array:
    """Each pixel as two by two."""
    return jnp.repeat(jnp.repeat(x, 2, axis=2), 2, axis=3)


class Resnet(nnx.Module):
    """A residual layer that depends on the time: ``(shortcut(x) + g(x, time)) / scale``.

    Args:
        config: of the network.
        inputs: the number of input channels.
        outputs: the number of output channels.
        scale: the divisor of the result.
        resample: the change of resolution, of ``x`` and inside ``g``: `halve`, `double` or None.
    """

    def __init__(
        self,
        config: UNetFields,
        inputs: int,
        outputs: int,
        *,
        scale: float = 1,
        resample: Callable[[Array], Array] | None = None,
    ) -> None:
        groups, eps = config.norm_num_groups, config.norm_eps
        self.scales = config.resnet_time_scale_shift == "scale_shift"
        self.act, self.scale, self.resample = ACTIVATIONS[config.act_fn], scale, resample
        self.norm1 = GroupNorm(inputs, groups, eps)
        self.conv1 = Conv(inputs, outputs, 3, padding=(1, 1))
        self.time_emb_proj = Linear(config.time_channels, 2 * outputs if self.scales else outputs)
        self.norm2 = GroupNorm(outputs, groups, eps)
        self.conv2 = Conv(outputs, outputs, 3, padding=(1, 1))
        self.conv_shortcut = None if inputs == outputs else Conv(inputs, outputs, 1)

    def __call__(self, x: Array, time: Array) -> Array:
        y = self.act(self.norm1(x))
        if self.resample is not None:
            x, y = self.resample(x), self.resample(y)
        y = self.conv1(y)
        embedded = self.time_emb_proj(self.act(time))[:, :, None, None]
        if self.scales:
            scale, shift = jnp.split(embedded, 2, axis=1)
            y = self.norm2(y) * (1 + scale) + shift
        else:
            y = self.norm2(y + embedded)
        y = self.conv2(self.act(y))
        return ((x if self.conv_shortcut is None else self.conv_shortcut(x)) + y) / self.scale


class Downsample(nnx.Module):
    """Half the resolution, by a convolution with stride 2."""

    def __init__(self, channels: int, padding: int) -> None:
        self.conv = Conv(channels, channels, 3, stride=2, padding=(padding, 1))

    def __call__(self, x: Array, time: Array) -> Array:
        return self.conv(x)


class Upsample(nnx.Module):
    """Twice the resolution: each pixel four times, and a convolution."""

    def __init__(self, channels: int) -> None:
        self.conv = Conv(channels, channels, 3, padding=(1, 1))

    def __call__(self, x: Array, time: Array) -> Array:
        return self.conv(double(x))


class Down(nnx.Module):
    """A block on the way down: it returns the image, and all states for the way up."""

    def __init__(
        self,
        config: UNetFields,
        kind: Kind,
        inputs: int,
        outputs: int,
        *,
        attend: Attend,
        last: bool,
    ) -> None:
        count = config.layers_per_block
        self.resnets = nnx.List(
            [Resnet(config, inputs if i == 0 else outputs, outputs) for i in range(count)]
        )
        self.attentions = nnx.List([attend() for _ in range(count if kind.attends else 0)])
        samplers: list[nnx.Module] = []
        if not last and kind.sampler == "resnet":
            samplers = [Resnet(config, outputs, outputs, resample=halve)]
        elif not last:
            samplers = [Downsample(outputs, config.downsample_padding)]
        self.downsamplers = nnx.List(samplers)

    def __call__(self, x: Array, time: Array, *context: Array) -> tuple[Array, list[Array]]:
        states = []
        for i, resnet in enumerate(self.resnets):
            x = resnet(x, time)
            if self.attentions:
                x = self.attentions[i](x, *context)
            states.append(x)
        for sampler in self.downsamplers:
            x = sampler(x, time)
            states.append(x)
        return x, states


class Up(nnx.Module):
    """A block on the way up: each residual layer reads a state of the way down, the last one first.

    Args:
        config: of the network.
        kind: of the block.
        inputs: the number of channels of the input image.
        outputs: the number of channels of the output image.
        first: the number of channels of the first state, which the last layer reads.
        attend: makes an attention layer.
        last: whether it is the last block, which keeps the resolution.
    """

    def __init__(
        self,
        config: UNetFields,
        kind: Kind,
        inputs: int,
        outputs: int,
        first: int,
        *,
        attend: Attend,
        last: bool,
    ) -> None:
        count = config.layers_per_block + 1
        images, beside = [inputs] + [outputs] * (count - 1), [outputs] * (count - 1) + [first]
        self.resnets = nnx.List(
            [Resnet(config, x + state, outputs) for x, state in zip(images, beside, strict=True)]
        )
        self.attentions = nnx.List([attend() for _ in range(count if kind.attends else 0)])
        samplers: list[nnx.Module] = []
        if not last and kind.sampler == "resnet":
            samplers = [Resnet(config, outputs, outputs, resample=double)]
        elif not last:
            samplers = [Upsample(outputs)]
        self.upsamplers = nnx.List(samplers)

    def __call__(self, x: Array, time: Array, states: list[Array], *context: Array) -> Array:
        for i, (resnet, state) in enumerate(zip(self.resnets, reversed(states), strict=True)):
            x = resnet(jnp.concatenate([x, state], axis=1), time)
            if self.attentions:
                x = self.attentions[i](x, *context)
        for sampler in self.upsamplers:
            x = sampler(x, time)
        return x


class Mid(nnx.Module):
    """The block in the middle: a residual layer, attention, a residual layer."""

    def __init__(self, config: UNetFields, channels: int, attend: Attend | None) -> None:
        scale = config.mid_block_scale_factor
        self.resnets = nnx.List([Resnet(config, channels, channels, scale=scale) for _ in range(2)])
        self.attentions = nnx.List([] if attend is None else [attend()])

    def __call__(self, x: Array, time: Array, *context: Array) -> Array:
        x = self.resnets[0](x, time)
        for attention in self.attentions:
            x = attention(x, *context)
        return self.resnets[1](x, time)
