"""The diffusion transformer (Peebles and Xie, ICCV 2023), diffusers' `DiTTransformer2DModel`."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.dit.blocks import EPS, Block
from deeppcr.diffusion.models.dit.config import DiTConfig
from deeppcr.diffusion.models.dit.patches import Patches, image
from deeppcr.diffusion.models.inputs import as_batch, check_images
from deeppcr.diffusion.models.layers import LayerNorm, Linear
from deeppcr.diffusion.models.stacked import each, stack_of, through


class DiT(nnx.Module):
    """A network that predicts the noise in the latent image of a class, or another target.

    Made by `load_model`. It has no state but its parameters, and no call changes it. `jax.vmap`
    over images, times and labels makes one larger batch.

    Attributes:
        null_label: the label of no class, for classifier-free guidance.
    """

    def __init__(self, config: DiTConfig) -> None:
        self.config = config
        self.null_label = config.num_embeds_ada_norm
        self.pos_embed = Patches(config)
        self.transformer_blocks = stack_of(Block(config), config.num_layers)
        self.norm_out = LayerNorm(config.width, EPS)
        self.proj_out_1 = Linear(config.width, 2 * config.width)
        self.proj_out_2 = Linear(
            config.width, config.patch_size**2 * (config.out_channels or config.in_channels)
        )

    def __call__(self, x: Array, t: Any, labels: Any = None) -> Array:
        """The prediction for the latent images ``x`` of classes ``labels`` at the times ``t``.

        Args:
            x: [batch, channels, height, width] of any float dtype; all is computed in the dtype of
                the parameters. The sides are multiples of the side of a patch; those of training
                are ``config.sample_size``.
            t: the time of the scheduler: a number, or numbers [batch].
            labels: the classes: an integer, or integers [batch]; ``null_label`` for no class.

        Returns:
            [batch, out channels, height, width], in the dtype of ``x``. With twice the channels of
            ``x``, the second half is a learned variance.

        Raises:
            TypeError: a dtype is wrong, or labels are missing.
            ValueError: a shape is wrong.
        """
        config, dtype = self.config, self.proj_out_1.weight.dtype
        check_images(x, config.in_channels, config.patch_size)
        if labels is None:
            raise TypeError(
                "labels is None, expected the classes of the images; "
                f"{self.null_label} for none, which is null_label."
            )
        t, labels = as_batch("t", t, x), as_batch("labels", labels, x)
        blocks = self.transformer_blocks
        tokens = self.pos_embed(x.astype(dtype))
        # The conditions do not depend on x: those of all blocks are computed side by side.
        conditions = each(blocks, lambda block: block.condition(t, labels))
        modulations = each(blocks, Block.modulation, conditions)
        y = through(blocks, Block.__call__, tokens.reshape(len(x), -1, config.width), modulations)
        shift, scale = jnp.split(self.proj_out_1(jax.nn.silu(conditions[0]))[:, None], 2, axis=-1)
        y = self.proj_out_2(self.norm_out(y) * (1 + scale) + shift)
        return image(y.reshape(*tokens.shape[:3], -1), config.patch_size).astype(x.dtype)
