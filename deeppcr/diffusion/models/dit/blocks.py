"""The blocks of a diffusion transformer: layers that are modulated by a condition.

Each layer reads normalised tokens with a scale and a shift, and what it adds is multiplied by a
gate (Peebles and Xie, ICCV 2023, section 3.2: adaLN-Zero):

    x = x + gate * layer((1 + scale) * norm(x) + shift)

Attributes have the names of diffusers, since weights are stored under their paths.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.dit.config import DiTConfig
from deeppcr.diffusion.models.embeddings import Positional, Rows, TwoLayers
from deeppcr.diffusion.models.feed_forward import FeedForward
from deeppcr.diffusion.models.layers import Attention, LayerNorm, Linear

EPS = 1e-6  # of the norms without a field in the configuration
TIME_FEATURES = 256


class Condition(nnx.Module):
    """The embedding of a time and a label: [batch] each -> [batch, channels].

    The last row of the table of labels is that of no label.
    """

    def __init__(self, config: DiTConfig) -> None:
        self.time_proj = Positional(TIME_FEATURES, shift=1, flip=True)
        self.timestep_embedder = TwoLayers(TIME_FEATURES, config.width)
        self.class_embedder = nnx.Dict(
            embedding_table=Rows(config.num_embeds_ada_norm + 1, config.width)
        )

    def __call__(self, t: Array, labels: Array) -> Array:
        time = self.timestep_embedder(self.time_proj(t))
        return time + self.class_embedder["embedding_table"](labels)


class Modulation(nnx.Module):
    """The condition of a block, and its scales, shifts and gates: [batch, 6 channels]."""

    def __init__(self, config: DiTConfig) -> None:
        self.emb = Condition(config)
        self.linear = Linear(config.width, 6 * config.width)
        self.norm = LayerNorm(config.width, EPS)


class Block(nnx.Module):
    """Attention and feed-forward layers: [batch, tokens, channels]."""

    def __init__(self, config: DiTConfig) -> None:
        heads, head = config.num_attention_heads, config.attention_head_dim
        self.norm1 = Modulation(config)
        self.attn1 = Attention(config.width, heads, head, bias=config.attention_bias)
        self.norm3 = LayerNorm(config.width, config.norm_eps, affine=config.norm_elementwise_affine)
        self.ff = FeedForward(config.width, config.activation_fn)

    def condition(self, t: Array, labels: Array) -> Array:
        """The embedding of the times and labels, which is the block's own."""
        return self.norm1.emb(t, labels)

    def modulation(self, condition: Array) -> Array:
        """Scales, shifts and gates from a condition: [batch, channels] -> [batch, 6 channels]."""
        return self.norm1.linear(jax.nn.silu(condition))

    def __call__(self, x: Array, modulation: Array) -> Array:
        shift, scale, gate, *second = jnp.split(modulation[:, None], 6, axis=-1)
        x = x + gate * self.attn1(self.norm1.norm(x) * (1 + scale) + shift)
        shift, scale, gate = second
        return x + gate * self.ff(self.norm3(x) * (1 + scale) + shift)
