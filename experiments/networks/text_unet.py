"""diffusers' `UNet2DConditionModel`: the UNet of Stable Diffusion and SDXL.

Its attention layers (Rombach et al., CVPR 2022, section 3.3) take the pixels of an image as tokens,
which read each other and those of the text:

    x = x + attention(norm(x));  x = x + attention(norm(x), text);  x = x + feed_forward(norm(x))
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.config import Field, count, flag, one_of
from experiments.networks import layers
from experiments.networks.layers import conv, layer_norm, linear
from experiments.networks.unet import COMMON_FIELDS, Trunk, anything, names, sizes, time_channels

DOWN, CROSS_DOWN = "DownBlock2D", "CrossAttnDownBlock2D"
UP, CROSS_UP = "UpBlock2D", "CrossAttnUpBlock2D"


def by_level(default: int) -> Field:
    """An integer >= 1, or one for each level."""
    return Field(
        default,
        "an integer >= 1, or a list of them, one for each of block_out_channels",
        lambda value: all(map(count(1).supports, value if isinstance(value, tuple) else (value,))),
    )


ALWAYS_FALSE = """
    only_cross_attention dual_cross_attention resnet_skip_time_act class_embeddings_concat
"""
ALWAYS_NONE = """
    reverse_transformer_layers_per_block encoder_hid_dim encoder_hid_dim_type num_attention_heads
    class_embed_type num_class_embeds time_embedding_act_fn timestep_post_act time_cond_proj_dim
    cross_attention_norm
"""
# ``attention_head_dim`` is the number of heads, despite its name. Fields with one value change
# nothing with it; nor do ``upcast_attention`` and ``addition_embed_type_num_heads``.
FIELDS = COMMON_FIELDS | {
    "in_channels": count(4),
    "out_channels": count(4),
    "down_block_types": names(*[CROSS_DOWN] * 3, DOWN, among=(DOWN, CROSS_DOWN)),
    "mid_block_type": one_of("UNetMidBlock2DCrossAttn", None),
    "up_block_types": names(UP, *[CROSS_UP] * 3, among=(UP, CROSS_UP)),
    "block_out_channels": sizes(320, 640, 1280, 1280),
    "cross_attention_dim": count(1280),
    "transformer_layers_per_block": by_level(1),
    "attention_head_dim": by_level(8),
    "use_linear_projection": flag(False),
    "addition_embed_type": one_of(None, "text_time"),
    "addition_time_embed_dim": count(None),
    "projection_class_embeddings_input_dim": count(None),
    "addition_embed_type_num_heads": anything(64),
    "upcast_attention": flag(False),
    "time_embedding_type": one_of("positional"),
    "attention_type": one_of("default"),
    "resnet_out_scale_factor": one_of(1.0, 1),
    "mid_block_only_cross_attention": one_of(None, False),
    **dict.fromkeys(("conv_in_kernel", "conv_out_kernel"), one_of(3)),
    **dict.fromkeys(ALWAYS_FALSE.split(), one_of(False)),
    **dict.fromkeys(ALWAYS_NONE.split(), one_of(None)),
}


class Layer(nnx.Module):
    """Attention to each other, attention to the text, feed-forward: [batch, tokens, channels]."""

    def __init__(self, channels: int, heads: int, context: int) -> None:
        head = channels // heads
        self.norm1, self.norm2, self.norm3 = (layer_norm(channels, epsilon=1e-5) for _ in range(3))
        self.attn1 = layers.Attention(channels, heads, head, bias=False)
        self.attn2 = layers.Attention(channels, heads, head, context, bias=False)
        self.ff = layers.FeedForward(channels, "geglu")

    def __call__(self, x: Array, text: Array) -> Array:
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), text)
        return x + self.ff(self.norm3(x))


class Transformer(nnx.Module):
    """Layers of attention of an image: ``x + project(layers(project(norm(x))))``.

    The projections are linear layers, or convolutions of one pixel: they compute the same, and
    their weights have other shapes.
    """

    def __init__(self, config: Any, level: int) -> None:
        channels, heads, count = (
            value[level] if isinstance(value, tuple) else value
            for value in (
                config.block_out_channels,
                config.attention_head_dim,
                config.transformer_layers_per_block,
            )
        )
        inner = channels // heads * heads
        self.linear = config.use_linear_projection
        self.norm = layers.group_norm(channels, num_groups=config.norm_num_groups, epsilon=1e-6)
        self.proj_in = linear(channels, inner) if self.linear else conv(channels, inner, 1)
        layer = Layer(inner, heads, config.cross_attention_dim)
        self.transformer_blocks = layers.stack_of(layer, count)
        self.proj_out = linear(inner, channels) if self.linear else conv(inner, channels, 1)

    def __call__(self, x: Array, text: Array) -> Array:
        y = self.proj_in(self.norm(x))
        tokens = y.reshape(len(x), -1, y.shape[-1])
        tokens = layers.through(self.transformer_blocks, tokens, text)
        return x + self.proj_out(tokens.reshape(y.shape))


class TextUNet(Trunk):
    """A network that predicts the noise in the latent image of a text, or another target.

    Made by `load_model`. It has no state but its parameters, and no call changes it. `jax.vmap`
    over images, times and texts makes one larger batch.
    """

    def __init__(self, config: Any) -> None:
        last = len(config.block_out_channels) - 1

        def attend(level: int = last) -> Transformer:
            return Transformer(config, level)

        super().__init__(config, config.block_out_channels[0], attend, attend, config.act_fn)
        self.add_embedding = config.addition_embed_type and layers.TwoLayers(
            config.projection_class_embeddings_input_dim, time_channels(config)
        )

    def __call__(
        self, x: Array, t: Any, text: Any, pooled: Any = None, time_ids: Any = None
    ) -> Array:
        """The prediction for the latent images ``x`` of a text at the times ``t``.

        Args:
            x: [batch, channels, height, width] of any float dtype; all is computed in the dtype of
                the parameters, and returned in that of ``x``.
            t: the time of the scheduler: a number, or numbers [batch].
            text: the embeddings of the tokens of a text, [batch, tokens, channels]; diffusers calls
                them ``encoder_hidden_states``.
            pooled: for SDXL: the embedding of the text, [batch, channels]; in diffusers
                ``text_embeds``.
            time_ids: for SDXL: sizes and corner, [batch, 6].
        """
        config, t = self.config, self.checked(x, t)
        time = self.time_embedding(self.waves(t, config.block_out_channels[0]))
        if {pooled is None, time_ids is None} != {self.add_embedding is None}:
            raise TypeError(
                f"pooled is {pooled} and time_ids is {time_ids}, expected "
                f"{'arrays' if self.add_embedding else 'None'}: the model has addition_embed_type="
                f"{config.addition_embed_type!r}."
            )
        if self.add_embedding:
            ids = jnp.asarray(time_ids)
            sizes = self.waves(ids.reshape(-1), config.addition_time_embed_dim).reshape(
                len(ids), -1
            )
            added = jnp.concatenate([jnp.asarray(pooled).astype(sizes.dtype), sizes], axis=1)
            time = time + self.add_embedding(added)
        return self.predict(x, time, jnp.asarray(text).astype(time.dtype)).astype(x.dtype)
