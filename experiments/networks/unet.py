"""diffusers' `UNet2DModel` (Ronneberger et al., MICCAI 2015)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.config import Field, count, flag, number, one_of
from experiments.networks import layers
from experiments.networks.layers import Attention, TwoLayers, conv, group_norm, linear

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": layers.gelu,
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
}
# Kinds of blocks, down or up: whether an attention layer follows each residual layer, and what
# changes the resolution, or the field that says it.
BLOCKS = {
    "DownBlock2D": (False, "conv"),
    "AttnDownBlock2D": (True, "downsample_type"),
    "ResnetDownsampleBlock2D": (False, "resnet"),
    "UpBlock2D": (False, "conv"),
    "AttnUpBlock2D": (True, "upsample_type"),
    "ResnetUpsampleBlock2D": (False, "resnet"),
}


def names(*default: str, among: tuple[str, ...]) -> Field:
    """Several names, as a list."""
    return Field(default, f"names among {list(among)}", lambda value: {*value} <= {*among})


def sizes(*default: int) -> Field:
    """One integer >= 1 for each level."""
    return Field(
        default,
        "a list of integers >= 1",
        lambda value: isinstance(value, tuple) and all(map(count(1).supports, value)),
    )


anything = partial(Field, expected="any value", supports=lambda value: True)
# Sizes of images and dropout change nothing here: they are of training.
FIELDS = {
    "sample_size": anything(None),
    "center_input_sample": flag(False),
    "time_embedding_dim": count(None),
    "freq_shift": number(0),
    "flip_sin_to_cos": flag(True),
    "layers_per_block": count(2),
    "mid_block_scale_factor": number(1),
    "downsample_padding": one_of(1, 0),
    "dropout": number(0.0),
    "act_fn": one_of(*ACTIVATIONS),
    "norm_num_groups": count(32),
    "norm_eps": number(1e-5),
    "resnet_time_scale_shift": one_of("default", "scale_shift"),
    "in_channels": count(3),
    "out_channels": count(3),
    "down_block_types": names(
        "DownBlock2D",
        "AttnDownBlock2D",
        "AttnDownBlock2D",
        "AttnDownBlock2D",
        among=("DownBlock2D", "AttnDownBlock2D", "ResnetDownsampleBlock2D"),
    ),
    "mid_block_type": one_of("UNetMidBlock2D", None),
    "up_block_types": names(
        "AttnUpBlock2D",
        "AttnUpBlock2D",
        "AttnUpBlock2D",
        "UpBlock2D",
        among=("UpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D"),
    ),
    "block_out_channels": sizes(224, 448, 672, 896),
    "time_embedding_type": one_of("positional", "fourier"),
    "downsample_type": one_of("conv", "resnet"),
    "upsample_type": one_of("conv", "resnet"),
    "attention_head_dim": Field(8, "an integer >= 1, or None", count(None).supports),
    "attn_norm_num_groups": count(None),
    "add_attention": flag(True),
    "class_embed_type": one_of(None),
    "num_class_embeds": count(None),
    "num_train_timesteps": count(None),
}


class Resnet(nnx.Module):
    """A residual layer that depends on the time: ``(shortcut(x) + g(x, time)) / scale``.

    ``resample`` changes the resolution, of ``x`` and inside ``g``: `halve`, `double` or None.
    """

    def __init__(
        self,
        config: Any,
        inputs: int,
        outputs: int,
        scale: float = 1,
        resample: Callable[[Array], Array] | None = None,
    ) -> None:
        norm = partial(group_norm, num_groups=config.norm_num_groups, epsilon=config.norm_eps)
        self.scales = config.resnet_time_scale_shift == "scale_shift"
        self.act, self.scale, self.resample = ACTIVATIONS[config.act_fn], scale, resample
        self.norm1, self.conv1 = norm(inputs), conv(inputs, outputs)
        self.time_emb_proj = linear(time_channels(config), (2 if self.scales else 1) * outputs)
        self.norm2, self.conv2 = norm(outputs), conv(outputs, outputs)
        self.conv_shortcut = None if inputs == outputs else conv(inputs, outputs, 1)

    def __call__(self, x: Array, time: Array) -> Array:
        y = self.act(self.norm1(x))
        if self.resample is not None:
            x, y = self.resample(x), self.resample(y)
        y = self.conv1(y)
        embedded = self.time_emb_proj(self.act(time))[:, None, None]
        if self.scales:
            scale, shift = jnp.split(embedded, 2, axis=-1)
            y = self.norm2(y) * (1 + scale) + shift
        else:
            y = self.norm2(y + embedded)
        y = self.conv2(self.act(y))
        return ((x if self.conv_shortcut is None else self.conv_shortcut(x)) + y) / self.scale


def halve(x: Array) -> Array:
    """The mean of each two by two pixels."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def double(x: Array) -> Array:
    """Each pixel as two by two."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


class Sampler(nnx.Module):
    """Half the resolution, by a convolution with stride 2; or twice, then a convolution."""

    def __init__(self, channels: int, up: bool, padding: int) -> None:
        self.up, once = up, partial(conv, channels, channels)
        self.conv = once() if up else once(strides=2, padding=[(padding, 1)] * 2)

    def __call__(self, x: Array, time: Array) -> Array:
        return self.conv(double(x) if self.up else x)


class Level(nnx.Module):
    """A block: residual layers, each followed by attention if it attends, and a resampling.

    On the way up, each residual layer also reads a state of the way down, the last one first.
    """

    def __init__(
        self, config: Any, inputs: list[int], outputs: int, attend: Any, up: bool, sampler: Any
    ) -> None:
        self.resnets = nnx.List([Resnet(config, each, outputs) for each in inputs])
        self.attentions = nnx.List([] if attend is None else [attend() for _ in inputs])
        samplers: list[nnx.Module] = []
        if sampler == "resnet":
            samplers = [Resnet(config, outputs, outputs, resample=double if up else halve)]
        elif sampler == "conv":
            samplers = [Sampler(outputs, up, config.downsample_padding)]
        self.downsamplers = nnx.List([] if up else samplers)
        self.upsamplers = nnx.List(samplers if up else [])

    def __call__(
        self, x: Array, time: Array, below: list[Array] | None
    ) -> tuple[Array, list[Array]]:
        states = []
        for i, resnet in enumerate(self.resnets):
            x = resnet(x if below is None else jnp.concatenate([x, below.pop()], axis=-1), time)
            if len(self.attentions):
                x = self.attentions[i](x)
            states.append(x)
        for sampler in [*self.downsamplers, *self.upsamplers]:
            x = sampler(x, time)
            states.append(x)
        return x, states


class Mid(nnx.Module):
    """The block in the middle: a residual layer, attention, a residual layer."""

    def __init__(self, config: Any, channels: int, attend: Any) -> None:
        scale = config.mid_block_scale_factor
        self.resnets = nnx.List([Resnet(config, channels, channels, scale) for _ in range(2)])
        self.attentions = nnx.List([] if attend is None else [attend()])

    def __call__(self, x: Array, time: Array) -> Array:
        x = self.resnets[0](x, time)
        for attention in self.attentions:
            x = attention(x)
        return self.resnets[1](x, time)


def time_channels(config: Any) -> int:
    """The number of channels of the embedding of a time."""
    return config.time_embedding_dim or 4 * config.block_out_channels[0]


class Fourier(nnx.Module):
    """Random frequencies of the logarithm (Song et al., ICLR 2021): [batch] -> [batch, 2 size]."""

    def __init__(self, size: int) -> None:
        self.weight = nnx.Param(jnp.zeros(size))

    def __call__(self, t: Array) -> Array:
        frequencies = self.weight[...].astype(jnp.float32)
        angles = jnp.log(t.astype(jnp.float32))[:, None] * frequencies[None] * (2 * math.pi)
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


class UNet(nnx.Module):
    """A network that predicts the noise in an image at a time, or another training target.

    Made by `load_model`. It has no state but its parameters, and no call changes it. `jax.vmap`
    over images and times makes one larger batch.
    """

    def __init__(self, config: Any) -> None:
        channels = config.block_out_channels
        self.config = config
        self.conv_in = conv(config.in_channels, channels[0])
        is_fourier = config.time_embedding_type == "fourier"
        self.time_proj = Fourier(channels[0]) if is_fourier else None
        features = 2 * channels[0] if is_fourier else channels[0]
        self.time_embedding = TwoLayers(features, time_channels(config))
        self.class_embedding = config.num_class_embeds and layers.embed(
            config.num_class_embeds, time_channels(config)
        )
        self.down_blocks = nnx.List(self._down())
        self.mid_block = None if config.mid_block_type is None else self._mid()
        self.up_blocks = nnx.List(self._up())
        self.conv_norm_out = group_norm(
            channels[0], num_groups=config.norm_num_groups, epsilon=config.norm_eps
        )
        self.conv_out = conv(channels[0], config.out_channels)

    def _waves(self, t: Array) -> Array:
        """Features of times, as the configuration has them: [n] -> [n, channels]."""
        config = self.config
        flip, shift = config.flip_sin_to_cos, config.freq_shift
        return layers.waves(t, config.block_out_channels[0], shift=shift, flip=flip)

    def _level(self, i: int, name: str, inputs: list[int], *, up: bool, end: bool) -> Level:
        config = self.config
        attends, kind = BLOCKS[name]
        sampler = None if end else getattr(config, kind, kind)
        channels, eps = config.block_out_channels[i], config.norm_eps
        attend = partial(
            Attention, channels, config.attention_head_dim, config.norm_num_groups, eps
        )
        return Level(config, inputs, channels, attend if attends else None, up, sampler)

    def _down(self) -> list[Level]:
        channels = self.config.block_out_channels
        depth = self.config.layers_per_block
        levels = []
        for i, name in enumerate(self.config.down_block_types):
            inputs = [channels[max(i - 1, 0)]] + [channels[i]] * (depth - 1)
            levels.append(self._level(i, name, inputs, up=False, end=i == len(channels) - 1))
        return levels

    def _mid(self) -> Mid:
        config = self.config
        groups = config.attn_norm_num_groups
        if groups is None and config.resnet_time_scale_shift == "default":
            groups = config.norm_num_groups
        channels, scale = config.block_out_channels[-1], config.mid_block_scale_factor
        attend = partial(
            Attention, channels, config.attention_head_dim, groups, config.norm_eps, scale
        )
        return Mid(config, channels, attend if config.add_attention else None)

    def _up(self) -> list[Level]:
        channels = self.config.block_out_channels
        depth = self.config.layers_per_block
        levels = []
        above = channels[-1]
        for i, name in zip(reversed(range(len(channels))), self.config.up_block_types, strict=True):
            inputs = [above + channels[i]] + [2 * channels[i]] * (depth - 1)
            inputs += [channels[i] + channels[max(i - 1, 0)]]
            levels.append(self._level(i, name, inputs, up=True, end=i == 0))
            above = channels[i]
        return levels

    def __call__(self, x: Array, t: Any, labels: Any = None) -> Array:
        """The prediction for the images ``x`` at the times ``t``, in the dtype of ``x``.

        Args:
            x: images [batch, channels, height, width] of any float dtype; all is computed in the
                dtype of the parameters.
            t: the time of the scheduler: a number, or numbers [batch].
            labels: for a model with class embeddings: an integer, or integers [batch].
        """
        layers.check_images(x, self.config.in_channels, 2 ** (len(self.down_blocks) - 1))
        t = layers.as_batch("t", t, x)
        features = self.time_proj(t) if self.time_proj else self._waves(t)
        time = self.time_embedding(features)
        if self.class_embedding:
            time = time + self.class_embedding(layers.as_batch("labels", labels, x))
        elif labels is not None:
            raise TypeError("labels are given, expected None: the model has no class embedding.")
        y = self._predict(x, time)
        if self.config.time_embedding_type == "fourier":
            y = y.astype(jnp.float32) / t.astype(jnp.float32)[:, None, None, None]
        return y.astype(x.dtype)

    def _predict(self, x: Array, time: Array) -> Array:
        """The prediction for images, from an embedding of the time."""
        x = 2 * x - 1 if self.config.center_input_sample else x
        y = self.conv_in(jnp.moveaxis(x.astype(time.dtype), 1, -1))
        states = [y]
        for down in self.down_blocks:
            y, new = down(y, time, None)
            states += new
        if self.mid_block is not None:
            y = self.mid_block(y, time)
        for up in self.up_blocks:
            y, _ = up(y, time, states)
        return jnp.moveaxis(self.conv_out(jax.nn.silu(self.conv_norm_out(y))), -1, 1)
