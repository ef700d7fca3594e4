"""The attention layers of a text-conditional UNet (Rombach et al., CVPR 2022, section 3.3).

The pixels of an image are tokens, which read each other and those of the text:

    x = x + attention(norm(x));  x = x + attention(norm(x), text);  x = x + feed_forward(norm(x))
"""

from flax import nnx
from jax import Array

from deeppcr.diffusion.models.feed_forward import FeedForward
from deeppcr.diffusion.models.layers import Attention, Conv, GroupNorm, LayerNorm, Linear
from deeppcr.diffusion.models.stacked import stack_of, through

EPS_IMAGE, EPS_TOKENS = 1e-6, 1e-5  # of the norms, as in diffusers


class Layer(nnx.Module):
    """Attention to each other, attention to the text, feed-forward: [batch, tokens, channels]."""

    def __init__(self, channels: int, heads: int, head: int, context: int) -> None:
        self.norm1, self.norm2, self.norm3 = (
            LayerNorm(channels, EPS_TOKENS, affine=True) for _ in range(3)
        )
        self.attn1 = Attention(channels, heads, head, bias=False)
        self.attn2 = Attention(channels, heads, head, context=context, bias=False)
        self.ff = FeedForward(channels, "geglu")

    def __call__(self, x: Array, text: Array) -> Array:
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), text)
        return x + self.ff(self.norm3(x))


class Transformer(nnx.Module):
    """Layers of attention of an image: ``x + project(layers(project(norm(x))))``.

    Args:
        channels: the number of channels of the image.
        heads: the number of heads.
        layers: the number of layers.
        context: the number of channels of the text.
        groups: of the norm.
        linear: whether the projections are linear layers, rather than convolutions of one pixel.
            They compute the same; their weights have other shapes.
    """

    def __init__(
        self, channels: int, heads: int, layers: int, context: int, groups: int, *, linear: bool
    ) -> None:
        head = channels // heads
        inner, self.linear = heads * head, linear
        self.norm = GroupNorm(channels, groups, EPS_IMAGE)
        self.proj_in = Linear(channels, inner) if linear else Conv(channels, inner, 1)
        self.transformer_blocks = stack_of(Layer(inner, heads, head, context), layers)
        self.proj_out = Linear(inner, channels) if linear else Conv(inner, channels, 1)

    def __call__(self, x: Array, text: Array) -> Array:
        batch, _, height, width = x.shape
        y = self.norm(x)
        y = y if self.linear else self.proj_in(y)
        tokens = y.reshape(batch, -1, height * width).swapaxes(1, 2)
        tokens = self.proj_in(tokens) if self.linear else tokens
        tokens = through(self.transformer_blocks, lambda layer, y: layer(y, text), tokens)
        tokens = self.proj_out(tokens) if self.linear else tokens
        y = tokens.swapaxes(1, 2).reshape(batch, -1, height, width)
        return x + (y if self.linear else self.proj_out(y))
