"""What all UNets (Ronneberger et al., MICCAI 2015) have: blocks on the way down, and up."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.embeddings import TwoLayers
from deeppcr.diffusion.models.layers import Conv, GroupNorm
from deeppcr.diffusion.models.unet.blocks import ACTIVATIONS, Attend, Down, Mid, Up
from deeppcr.diffusion.models.unet.fields import UNetFields


class Trunk(nnx.Module):
    """A UNet without its embeddings.

    Args:
        config: of the network.
        attend: makes an attention layer for a level: 0 is that of the first block, the last one
            that of the middle.
        mid_attend: makes that of the block in the middle; None if there is none.
    """

    def __init__(
        self,
        config: UNetFields,
        attend: Callable[[int], nnx.Module],
        mid_attend: Attend | None,
    ) -> None:
        channels, last = config.block_out_channels, config.levels - 1
        self.act = ACTIVATIONS[config.outer_act]
        self.conv_in = Conv(config.in_channels, channels[0], 3, padding=(1, 1))
        self.time_embedding = TwoLayers(config.time_features, config.time_channels, self.act)
        before = [channels[0], *channels]  # input channels of each block on the way down
        self.down_blocks = nnx.List(
            [
                Down(
                    config,
                    kind,
                    before[i],
                    channels[i],
                    attend=lambda i=i: attend(i),  # type: ignore[misc]
                    last=i == last,
                )
                for i, kind in enumerate(config.down)
            ]
        )
        self.mid_block = (
            None if config.mid_block_type is None else Mid(config, channels[-1], mid_attend)
        )
        after = [*channels, channels[-1]]  # and on the way up
        self.up_blocks = nnx.List(
            [
                Up(
                    config,
                    kind,
                    after[last - i + 1],
                    channels[last - i],
                    before[last - i],
                    attend=lambda i=i: attend(last - i),  # type: ignore[misc]
                    last=i == last,
                )
                for i, kind in enumerate(config.up)
            ]
        )
        self.conv_norm_out = GroupNorm(channels[0], config.norm_num_groups, config.norm_eps)
        self.conv_out = Conv(channels[0], config.out_channels, 3, padding=(1, 1))

    @property
    def dtype(self) -> jnp.dtype:
        """That of the parameters."""
        return self.conv_in.weight.dtype

    def predict(self, x: Array, time: Array, *context: Array) -> Array:
        """The prediction for images, an embedding of the time, and what attention layers read."""
        y = self.conv_in(x.astype(self.dtype))
        states = [y]
        for down in self.down_blocks:
            y, new = down(y, time, *context)
            states += new
        if self.mid_block is not None:
            y = self.mid_block(y, time, *context)
        for up in self.up_blocks:
            count = len(up.resnets)
            states, given = states[:-count], states[-count:]
            y = up(y, time, given, *context)
        return self.conv_out(self.act(self.conv_norm_out(y)))
