"""The UNet (Ronneberger et al., MICCAI 2015) of diffusion models, diffusers' `UNet2DModel`."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.embeddings import TwoLayers
from deeppcr.diffusion.models.inputs import as_batch, check_images
from deeppcr.diffusion.models.layers import Conv, GroupNorm
from deeppcr.diffusion.models.unet.blocks import Down, Mid, Up
from deeppcr.diffusion.models.unet.config import UNetConfig
from deeppcr.diffusion.models.unet.embeddings import class_embedding, time_projection


class UNet(nnx.Module):
    """A network that predicts the noise in an image at a time, or another training target.

    Made by `load_model`. It has no state but its parameters, and no call changes it. `jax.vmap`
    over images and times makes one larger batch.
    """

    def __init__(self, config: UNetConfig) -> None:
        channels = config.block_out_channels
        self.config = config
        self.conv_in = Conv(config.in_channels, channels[0], 3, padding=(1, 1))
        self.time_proj = time_projection(config)
        self.time_embedding = TwoLayers(config.time_features, config.time_channels)
        self.class_embedding = class_embedding(config)
        last = len(channels) - 1
        before = [channels[0], *channels]  # input channels of each block on the way down
        self.down_blocks = nnx.List(
            [
                Down(config, kind, before[i], channels[i], last=i == last)
                for i, kind in enumerate(config.down)
            ]
        )
        self.mid_block = None if config.mid_block_type is None else Mid(config, channels[-1])
        after = [*channels, channels[-1]]  # and on the way up
        self.up_blocks = nnx.List(
            [
                Up(
                    config,
                    kind,
                    after[last - i + 1],
                    channels[last - i],
                    before[last - i],
                    last=i == last,
                )
                for i, kind in enumerate(config.up)
            ]
        )
        self.conv_norm_out = GroupNorm(channels[0], config.norm_num_groups, config.norm_eps)
        self.conv_out = Conv(channels[0], config.out_channels, 3, padding=(1, 1))

    def __call__(self, x: Array, t: Any, labels: Any = None) -> Array:
        """The prediction for the images ``x`` at the times ``t``.

        Args:
            x: images [batch, channels, height, width] of any float dtype; all is computed in the
                dtype of the parameters.
            t: the time of the scheduler: a number, or numbers [batch].
            labels: for a model with class embeddings: a number or numbers [batch]; if
                ``class_embed_type`` is "identity", embeddings [batch, channels].

        Returns:
            [batch, out channels, height, width], in the dtype of ``x``.

        Raises:
            TypeError: a dtype is wrong; labels are missing, or given to a model without class
                embedding.
            ValueError: a shape is wrong.
        """
        config, dtype = self.config, self.conv_in.weight.dtype
        check_images(x, config.in_channels, 2 ** (len(config.block_out_channels) - 1))
        t = as_batch("t", t, x)
        time = self.time_embedding(self.time_proj(t)) + self._label(labels, x).astype(dtype)
        y = self.conv_in((2 * x - 1 if config.center_input_sample else x).astype(dtype))
        states = [y]
        for down in self.down_blocks:
            y, new = down(y, time)
            states += new
        if self.mid_block is not None:
            y = self.mid_block(y, time)
        for up in self.up_blocks:
            count = len(up.resnets)
            states, given = states[:-count], states[-count:]
            y = up(y, time, given)
        y = self.conv_out(jax.nn.silu(self.conv_norm_out(y)))
        if config.time_embedding_type == "fourier":
            y = y.astype(jnp.float32) / t.astype(jnp.float32)[:, None, None, None]
        return y.astype(x.dtype)

    def _label(self, labels: Any, x: Array) -> Array:
        """What labels add to the embedding of the time."""
        config = self.config
        if config.class_embed_type is None and config.num_class_embeds is None:
            if labels is not None:
                raise TypeError(
                    "labels are given, expected None: the model has no class embedding."
                )
            return jnp.zeros((1, 1))
        if labels is None:
            raise TypeError(
                "labels is None, expected the classes of the images: the model has a class "
                "embedding."
            )
        if config.class_embed_type == "identity":
            labels = jnp.asarray(labels)
            if labels.shape not in ((1, config.time_channels), (x.shape[0], config.time_channels)):
                raise ValueError(
                    f"labels has shape {list(labels.shape)}, expected "
                    f"[{x.shape[0]}, {config.time_channels}]."
                )
            return labels
        labels = as_batch("labels", labels, x)
        return self.class_embedding(
            self.time_proj(labels) if config.class_embed_type == "timestep" else labels
        )
