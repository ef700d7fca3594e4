"""The configuration of diffusers' `UNet2DModel` (``models/unets/unet_2d.py``)."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

from deeppcr.checks import check_count, check_name
from deeppcr.diffusion.models.config import ModelConfig, check_number


class Kind(NamedTuple):
    """A kind of block on the way down or up.

    Attributes:
        attends: whether an attention layer follows each residual layer.
        sampler: the change of resolution: "conv", "resnet", or None, in which case it is
            ``downsample_type`` or ``upsample_type``.
    """

    attends: bool
    sampler: str | None


DOWN = {
    "DownBlock2D": Kind(attends=False, sampler="conv"),
    "AttnDownBlock2D": Kind(attends=True, sampler=None),
    "ResnetDownsampleBlock2D": Kind(attends=False, sampler="resnet"),
}
UP = {
    "UpBlock2D": Kind(attends=False, sampler="conv"),
    "AttnUpBlock2D": Kind(attends=True, sampler=None),
    "ResnetUpsampleBlock2D": Kind(attends=False, sampler="resnet"),
}
# Earlier names of the attention layers, which diffusers also reads.
OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


@dataclasses.dataclass(frozen=True)
class UNetConfig(ModelConfig):
    """The fields of `UNet2DModel`, as diffusers documents them.

    ``sample_size``, the size of the images in training, changes nothing. Nor does ``dropout``,
    which is for training.
    """

    NAME = "UNet2DModel"
    COUNTS = ("in_channels", "out_channels", "layers_per_block", "norm_num_groups")
    OPTIONAL_COUNTS = (
        "time_embedding_dim",
        "attention_head_dim",
        "attn_norm_num_groups",
        "num_class_embeds",
        "num_train_timesteps",
    )
    CHOICES: ClassVar = {
        "center_input_sample": (False, True),
        "flip_sin_to_cos": (False, True),
        "add_attention": (False, True),
        "time_embedding_type": ("positional", "fourier", "learned"),
        "mid_block_type": ("UNetMidBlock2D", None),
        "downsample_padding": (0, 1),
        "downsample_type": ("conv", "resnet"),
        "upsample_type": ("conv", "resnet"),
        "act_fn": ("silu", "swish", "gelu", "mish", "relu"),
        "resnet_time_scale_shift": ("default", "scale_shift"),
        "class_embed_type": (None, "timestep", "identity"),
    }

    sample_size: Any = None
    in_channels: int = 3
    out_channels: int = 3
    center_input_sample: bool = False
    time_embedding_type: str = "positional"
    time_embedding_dim: int | None = None
    freq_shift: float = 0
    flip_sin_to_cos: bool = True
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
    layers_per_block: int = 2
    mid_block_scale_factor: float = 1
    downsample_padding: int = 1
    downsample_type: str = "conv"
    upsample_type: str = "conv"
    dropout: float = 0.0
    act_fn: str = "silu"
    attention_head_dim: int | None = 8
    norm_num_groups: int = 32
    attn_norm_num_groups: int | None = None
    norm_eps: float = 1e-5
    resnet_time_scale_shift: str = "default"
    add_attention: bool = True
    class_embed_type: str | None = None
    num_class_embeds: int | None = None
    num_train_timesteps: int | None = None

    def rename(self, weight: str) -> str:
        """The present name of a weight that earlier versions of diffusers have saved."""
        *path, layer, kind = ["", *weight.split(".")]
        return ".".join([*path, OLD_NAMES.get(layer, layer), kind]).removeprefix(".")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("freq_shift", self.freq_shift)
        check_number("mid_block_scale_factor", self.mid_block_scale_factor, above=0)
        check_number("norm_eps", self.norm_eps, above=0)
        check_number("dropout", self.dropout)
        self._check_sample_size()
        self._check_blocks()
        self._check_embeddings()

    def _check_sample_size(self) -> None:
        size = self.sample_size
        for side in size if isinstance(size, tuple) else (size,):
            check_count("sample_size", side, "a side of an image, or two", optional=True)

    def _check_blocks(self) -> None:
        channels = self.block_out_channels
        if not isinstance(channels, tuple) or not channels:
            raise TypeError(
                f"block_out_channels is {channels!r}, expected a list of numbers of channels."
            )
        for count in channels:
            check_count("block_out_channels", count, "numbers of channels")
            check_groups("norm_num_groups", self.norm_num_groups, count)
        for name, kinds in ("down_block_types", DOWN), ("up_block_types", UP):
            types = getattr(self, name)
            if not isinstance(types, tuple) or len(types) != len(channels):
                expected = f"expected {len(channels)} names, one for each of block_out_channels."
                raise ValueError(f"{name} is {types!r}, {expected}")
            for kind in types:
                check_name(name, _new_name(kind), kinds, "blocks")
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

    def _check_embeddings(self) -> None:
        if self.time_embedding_type == "learned" and self.num_train_timesteps is None:
            raise ValueError(
                "num_train_timesteps is None, expected a number: time_embedding_type is 'learned'."
            )
        if (
            self.time_embedding_type == "positional"
            and not self.freq_shift < self.block_out_channels[0] // 2
        ):
            half = self.block_out_channels[0] // 2
            raise ValueError(
                f"freq_shift is {self.freq_shift!r}, expected less than {half}, half of "
                "block_out_channels[0]."
            )

    @property
    def time_features(self) -> int:
        """The number of features of a time, before any trained layer."""
        return self.block_out_channels[0] * (2 if self.time_embedding_type == "fourier" else 1)

    @property
    def time_channels(self) -> int:
        """The number of channels of the embedding of a time."""
        return self.time_embedding_dim or 4 * self.block_out_channels[0]

    @property
    def down(self) -> list[Kind]:
        """The kinds of the blocks on the way down."""
        return [DOWN[_new_name(name)] for name in self.down_block_types]

    @property
    def up(self) -> list[Kind]:
        """The kinds of the blocks on the way up."""
        return [UP[_new_name(name)] for name in self.up_block_types]

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


def check_groups(name: str, groups: int, channels: int) -> None:
    """Raise unless the channels can be divided into the groups."""
    if channels % groups:
        raise ValueError(
            f"{name} is {groups}, expected a divisor of all numbers of channels: also of "
            f"{channels}."
        )


def _new_name(block: Any) -> Any:
    """Blocks were called "UNetResDownBlock2D" in the first versions of diffusers."""
    return block.removeprefix("UNetRes") if isinstance(block, str) else block
