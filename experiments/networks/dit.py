"""The diffusion transformer (Peebles and Xie, ICCV 2023), diffusers' `DiTTransformer2DModel`.

Its layers are modulated by a condition (section 3.2: adaLN-Zero). Each reads normalised tokens with
a scale and a shift, and what it adds is multiplied by a gate:

    x = x + gate * layer((1 + scale) * norm(x) + shift)
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from deeppcr.diffusion.config import count, flag, number, one_of
from experiments.networks import layers
from experiments.networks.layers import TwoLayers, conv, each, layer_norm, linear, waves

# ``dropout`` is for training; ``norm_num_groups`` and ``upcast_attention`` change nothing, as in
# diffusers. ``norm_eps`` is that of the norm before the feed-forward layers only.
FIELDS = {
    "num_attention_heads": count(16),
    "attention_head_dim": count(72),
    "in_channels": count(4),
    "out_channels": count(None),
    "num_layers": count(28),
    "dropout": number(0.0),
    "norm_num_groups": count(32),
    "attention_bias": flag(True),
    "sample_size": count(32),
    "patch_size": count(2),
    "activation_fn": one_of("gelu-approximate", "gelu", "geglu"),
    "num_embeds_ada_norm": count(1000),
    "upcast_attention": flag(False),
    "norm_type": one_of("ada_norm_zero"),
    "norm_elementwise_affine": flag(False),
    "norm_eps": number(1e-5),
}
# The class that published files name has more fields, which change nothing with these values.
OLDER_FIELDS = FIELDS | {
    "attention_type": one_of("default"),
    "use_additional_conditions": one_of(None, False),
    **dict.fromkeys(("caption_channels", "cross_attention_dim"), one_of(None)),
    **dict.fromkeys(("interpolation_scale", "num_vector_embeds"), one_of(None)),
    **dict.fromkeys(("double_self_attention", "only_cross_attention"), one_of(False)),
    "use_linear_projection": one_of(False),
}
EPS = 1e-6  # of the norms without a field in the configuration
TIME_FEATURES = 256


class Condition(nnx.Module):
    """The embedding of a time and a label: [batch] each -> [batch, channels].

    The last row of the table of labels is that of no label.
    """

    def __init__(self, labels: int, width: int) -> None:
        self.timestep_embedder = TwoLayers(TIME_FEATURES, width)
        self.class_embedder = nnx.Dict(embedding_table=layers.embed(labels + 1, width))

    def __call__(self, t: Array, labels: Array) -> Array:
        time = self.timestep_embedder(waves(t, TIME_FEATURES, shift=1))
        return time + self.class_embedder["embedding_table"](labels)


class Modulation(nnx.Module):
    """The condition of a block, and its scales, shifts and gates: [batch, 6 channels]."""

    def __init__(self, labels: int, width: int) -> None:
        self.emb = Condition(labels, width)
        self.linear = linear(width, 6 * width)
        self.norm = plain_norm(width)


def plain_norm(width: int) -> nnx.LayerNorm:
    """A norm without parameters."""
    return layer_norm(width, epsilon=EPS, use_bias=False, use_scale=False)


class Block(nnx.Module):
    """Attention and feed-forward layers: [batch, tokens, channels]."""

    def __init__(self, config: Any, width: int) -> None:
        heads, head, affine = (
            config.num_attention_heads,
            config.attention_head_dim,
            config.norm_elementwise_affine,
        )
        self.norm1 = Modulation(config.num_embeds_ada_norm, width)
        self.attn1 = layers.Attention(width, heads, head, bias=config.attention_bias)
        self.norm3 = layer_norm(width, epsilon=config.norm_eps, use_bias=affine, use_scale=affine)
        self.ff = layers.FeedForward(width, config.activation_fn)

    def __call__(self, x: Array, modulation: Array) -> Array:
        shift, scale, gate, *second = jnp.split(modulation[:, None], 6, axis=-1)
        x = x + gate * self.attn1(self.norm1.norm(x) * (1 + scale) + shift)
        shift, scale, gate = second
        return x + gate * self.ff(self.norm3(x) * (1 + scale) + shift)


class DiT(nnx.Module):
    """A network that predicts the noise in the latent image of a class, or another target.

    Made by `load_model`. It has no state but its parameters, and no call changes it. `jax.vmap`
    over images, times and labels makes one larger batch.

    Attributes:
        null_label: the label of no class, for classifier-free guidance.
    """

    def __init__(self, config: Any) -> None:
        width, patch = config.num_attention_heads * config.attention_head_dim, config.patch_size
        self.config, self.width = config, width
        self.null_label = config.num_embeds_ada_norm
        self.pos_embed = nnx.Dict(
            proj=conv(config.in_channels, width, patch, strides=patch, padding=0)
        )
        self.transformer_blocks = layers.stack_of(Block(config, width), config.num_layers)
        self.norm_out = plain_norm(width)
        self.proj_out_1 = linear(width, 2 * width)
        self.proj_out_2 = linear(width, patch**2 * (config.out_channels or config.in_channels))

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
        """
        config, patch = self.config, self.config.patch_size
        layers.check_images(x, config.in_channels, patch)
        t, labels = layers.as_batch("t", t, x), layers.as_batch("labels", labels, x)
        blocks, dtype = self.transformer_blocks, self.proj_out_1.kernel.dtype
        tokens = self.pos_embed["proj"](jnp.moveaxis(x.astype(dtype), 1, -1))
        batch, rows, columns, _ = tokens.shape
        tokens = tokens + positions(rows, columns, config.sample_size // patch, self.width, dtype)
        # The conditions do not depend on x: those of all blocks are computed side by side.
        conditions = each(blocks, lambda block: block.norm1.emb(t, labels))
        modulations = each(blocks, lambda block, c: block.norm1.linear(jax.nn.silu(c)), conditions)
        y = layers.through(
            blocks, tokens.reshape(batch, rows * columns, self.width), own=modulations
        )
        shift, scale = jnp.split(self.proj_out_1(jax.nn.silu(conditions[0]))[:, None], 2, axis=-1)
        y = self.proj_out_2(self.norm_out(y) * (1 + scale) + shift)
        pixels = jnp.einsum("bhwijc->bchiwj", y.reshape(batch, rows, columns, patch, patch, -1))
        return pixels.reshape(batch, -1, *x.shape[2:]).astype(x.dtype)


def positions(rows: int, columns: int, side: int, width: int, dtype: Any) -> Array:
    """The position of each token, [1, rows, columns, width], as diffusers has it.

    Sines and cosines of the column, and of the row, with frequencies in a geometric sequence from 1
    to 1/10000; in training there were ``side`` of them.
    """

    def features(count: int) -> np.ndarray:
        exponents = np.arange(width // 4) / (width // 4)
        angles = (np.arange(count) * side / count)[:, None] * layers.SLOWEST**-exponents
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    both = np.broadcast_arrays(features(columns)[None], features(rows)[:, None])
    return jnp.asarray(np.concatenate(both, axis=-1)[None], dtype)
