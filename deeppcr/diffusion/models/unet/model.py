"""diffusers' `UNet2DModel`."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from deeppcr.diffusion.models.inputs import as_batch, check_images
from deeppcr.diffusion.models.layers import Attention, GroupNorm
from deeppcr.diffusion.models.unet.config import UNetConfig
from deeppcr.diffusion.models.unet.embeddings import class_embedding, time_projection
from deeppcr.diffusion.models.unet.trunk import Trunk


class PixelAttention(Attention):
    """Attention of the pixels of an image: ``(x + attention(norm(x))) / scale``.

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
        super().__init__(channels, channels // head, head)
        self.group_norm = None if groups is None else GroupNorm(channels, groups, eps)
        self.scale = scale

    def __call__(self, x: Array, context: Array | None = None) -> Array:
        normal = x if self.group_norm is None else self.group_norm(x)
        pixels = normal.reshape(*x.shape[:2], -1).swapaxes(1, 2)
        found = super().__call__(pixels, context).swapaxes(1, 2)
        return (x + found.reshape(x.shape)) / self.scale


class UNet(Trunk):
    """A network that predicts the noise in an image at a time, or another training target.

    Made by `load_model`. It has no state but its parameters, and no call changes it. `jax.vmap`
    over images and times makes one larger batch.
    """

    def __init__(self, config: UNetConfig) -> None:
        channels, eps = config.block_out_channels, config.norm_eps

        def attend(level: int) -> PixelAttention:
            head = config.attention_head_dim or channels[level]
            return PixelAttention(channels[level], head, config.norm_num_groups, eps)

        def mid_attend() -> PixelAttention:
            head, scale = config.attention_head_dim or channels[-1], config.mid_block_scale_factor
            return PixelAttention(channels[-1], head, config.mid_groups, eps, scale)

        super().__init__(config, attend, mid_attend if config.mid_attends else None)
        self.config = config
        self.time_proj = time_projection(config)
        self.class_embedding = class_embedding(config)

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
        config = self.config
        check_images(x, config.in_channels, 2 ** (config.levels - 1))
        t = as_batch("t", t, x)
        time = self.time_embedding(self.time_proj(t)) + self._label(labels, x).astype(self.dtype)
        y = self.predict(2 * x - 1 if config.center_input_sample else x, time)
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
