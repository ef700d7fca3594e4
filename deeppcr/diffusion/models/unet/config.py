"""The configuration of diffusers' `UNet2DModel` (``models/unets/unet_2d.py``)."""

import dataclasses
from typing import ClassVar

from deeppcr.diffusion.models.unet.fields import Kind, UNetFields, check_groups

# Earlier names of the attention layers, which diffusers also reads.
OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


@dataclasses.dataclass(frozen=True)
class UNetConfig(UNetFields):
    """The fields of `UNet2DModel`, as diffusers documents them."""

    NAME = "UNet2DModel"
    DOWN: ClassVar = {
        "DownBlock2D": Kind(attends=False, sampler="conv"),
        "AttnDownBlock2D": Kind(attends=True, sampler="downsample_type"),
        "ResnetDownsampleBlock2D": Kind(attends=False, sampler="resnet"),
    }
    UP: ClassVar = {
        "UpBlock2D": Kind(attends=False, sampler="conv"),
        "AttnUpBlock2D": Kind(attends=True, sampler="upsample_type"),
        "ResnetUpsampleBlock2D": Kind(attends=False, sampler="resnet"),
    }
    OPTIONAL_COUNTS = (
        *UNetFields.OPTIONAL_COUNTS,
        "attention_head_dim",
        "attn_norm_num_groups",
        "num_class_embeds",
        "num_train_timesteps",
    )
    CHOICES: ClassVar = {
        **UNetFields.CHOICES,
        "add_attention": (False, True),
        "time_embedding_type": ("positional", "fourier", "learned"),
        "mid_block_type": ("UNetMidBlock2D", None),
        "downsample_type": ("conv", "resnet"),
        "upsample_type": ("conv", "resnet"),
        "class_embed_type": (None, "timestep", "identity"),
    }

    down_block_types: tuple[str, ...] = (
        "DownBlock2D",
        "AttnDownBlock2D",
        "AttnDownBlock2D",
        "AttnDownBlock2D",
    )
    mid_block_type: str | None = "UNetMidBlock2D"
    up_block_types: tuple[str, ...] = (
        "AttnUpBlock2D",
        "AttnUpBlock2D",
        "AttnUpBlock2D",
        "UpBlock2D",
    )
    block_out_channels: tuple[int, ...] = (224, 448, 672, 896)
    downsample_type: str = "conv"
    upsample_type: str = "conv"
    attention_head_dim: int | None = 8
    attn_norm_num_groups: int | None = None
    add_attention: bool = True
    class_embed_type: str | None = None
    num_class_embeds: int | None = None
    num_train_timesteps: int | None = None

    def rename(self, weight: str) -> str:
        """The present name of a weight that earlier versions of diffusers have saved."""
        *path, layer, kind = ["", *weight.split(".")]
        return ".".join([*path, OLD_NAMES.get(layer, layer), kind]).removeprefix(".")

    def _check_blocks(self) -> None:
        super()._check_blocks()
        channels = self.block_out_channels
        if self.mid_groups is not None:
            check_groups("attn_norm_num_groups", self.mid_groups, channels[-1])
        blocks = zip([*self.down, *self.up], [*channels, *reversed(channels)], strict=True)
        attended = [count for kind, count in blocks if kind.attends] + [
            channels[-1]
        ] * self.mid_attends
        head, least = self.attention_head_dim, min(attended, default=None)
        if head is not None and least is not None and head > least:
            raise ValueError(
                f"attention_head_dim is {head}, expected at most {least}, the number of channels "
                "of an attention layer."
            )

    def _check_time(self) -> None:
        super()._check_time()
        if self.time_embedding_type == "learned" and self.num_train_timesteps is None:
            raise ValueError(
                "num_train_timesteps is None, expected a number: time_embedding_type is 'learned'."
            )

    @property
    def down(self) -> list[Kind]:
        """The kinds of the blocks on the way down."""
        return [self._resampled(kind) for kind in super().down]

    @property
    def up(self) -> list[Kind]:
        """The kinds of the blocks on the way up."""
        return [self._resampled(kind) for kind in super().up]

    def _resampled(self, kind: Kind) -> Kind:
        """The kind of block, where a field names the change of resolution."""
        return kind._replace(sampler=getattr(self, kind.sampler, kind.sampler))

    @property
    def mid_attends(self) -> bool:
        """Whether the block in the middle has an attention layer."""
        return self.mid_block_type is not None and self.add_attention

    @property
    def mid_groups(self) -> int | None:
        """The groups of the norm before the attention layer in the middle; None without a norm."""
        if not self.mid_attends or self.attn_norm_num_groups is not None:
            return self.attn_norm_num_groups
        return self.norm_num_groups if self.resnet_time_scale_shift == "default" else None
