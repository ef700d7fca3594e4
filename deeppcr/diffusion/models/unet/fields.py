"""The fields that all UNets of diffusers have, and what follows from them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from deeppcr.checks import check_count, check_name
from deeppcr.diffusion.models.config import ModelConfig, check_number


class Kind(NamedTuple):
    """A kind of block on the way down or up.

    Attributes:
        attends: whether an attention layer follows each residual layer.
        sampler: the change of resolution: "conv" or "resnet".
    """

    attends: bool
    sampler: str


@dataclasses.dataclass(frozen=True)
class UNetFields(ModelConfig):
    """The fields, as diffusers documents them; subclasses have those of one class, and defaults.

    ``sample_size``, the size of the images in training, changes nothing. Nor does ``dropout``,
    which is for training.

    Attributes:
        DOWN: the kinds of blocks on the way down, by the names of their classes.
        UP: those on the way up.
    """

    DOWN: ClassVar[Mapping[str, Kind]]
    UP: ClassVar[Mapping[str, Kind]]
    COUNTS: ClassVar[tuple[str, ...]] = (
        "in_channels",
        "out_channels",
        "layers_per_block",
        "norm_num_groups",
    )
    OPTIONAL_COUNTS: ClassVar[tuple[str, ...]] = ("time_embedding_dim",)
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "center_input_sample": (False, True),
        "flip_sin_to_cos": (False, True),
        "downsample_padding": (0, 1),
        "act_fn": ("silu", "swish", "gelu", "mish", "relu"),
        "resnet_time_scale_shift": ("default", "scale_shift"),
    }

    sample_size: Any = None
    in_channels: int = 3
    out_channels: int = 3
    center_input_sample: bool = False
    time_embedding_type: str = "positional"
    time_embedding_dim: int | None = None
    freq_shift: float = 0
    flip_sin_to_cos: bool = True
    down_block_types: tuple[str, ...] = ()
    mid_block_type: str | None = None
    up_block_types: tuple[str, ...] = ()
    block_out_channels: tuple[int, ...] = ()
    layers_per_block: int = 2
    mid_block_scale_factor: float = 1
    downsample_padding: int = 1
    dropout: float = 0.0
    act_fn: str = "silu"
    norm_num_groups: int = 32
    norm_eps: float = 1e-5
    resnet_time_scale_shift: str = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("freq_shift", self.freq_shift)
        check_number("mid_block_scale_factor", self.mid_block_scale_factor, above=0)
        check_number("norm_eps", self.norm_eps, above=0)
        check_number("dropout", self.dropout)
        self._check_sample_size()
        self._check_blocks()
        self._check_time()

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
        for name, kinds in ("down_block_types", self.DOWN), ("up_block_types", self.UP):
            types = getattr(self, name)
            if not isinstance(types, tuple) or len(types) != len(channels):
                expected = f"expected {len(channels)} names, one for each of block_out_channels."
                raise ValueError(f"{name} is {types!r}, {expected}")
            for kind in types:
                check_name(name, _new_name(kind), kinds, "blocks")

    def _check_time(self) -> None:
        half = self.block_out_channels[0] // 2
        if self.time_embedding_type == "positional" and not self.freq_shift < half:
            raise ValueError(
                f"freq_shift is {self.freq_shift!r}, expected less than {half}, half of "
                "block_out_channels[0]."
            )

    @property
    def levels(self) -> int:
        """The number of resolutions: that of blocks on the way down, and up."""
        return len(self.block_out_channels)

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
        return [self.DOWN[_new_name(name)] for name in self.down_block_types]

    @property
    def up(self) -> list[Kind]:
        """The kinds of the blocks on the way up."""
        return [self.UP[_new_name(name)] for name in self.up_block_types]

    @property
    def outer_act(self) -> str:
        """The activation outside of the residual layers."""
        return "silu"


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
