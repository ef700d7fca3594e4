"""The configuration of diffusers' `UNet2DConditionModel`, the UNet of Stable Diffusion and SDXL.

Source: ``models/unets/unet_2d_condition.py``.
"""

import dataclasses
from typing import Any, ClassVar

from deeppcr.checks import check_count
from deeppcr.diffusion.models.unet.fields import Kind, UNetFields

# Fields with one supported value: with it, they change nothing.
OFF: dict[str, tuple[Any, ...]] = {
    "only_cross_attention": (False,),
    "reverse_transformer_layers_per_block": (None,),
    "encoder_hid_dim": (None,),
    "encoder_hid_dim_type": (None,),
    "num_attention_heads": (None,),
    "dual_cross_attention": (False,),
    "class_embed_type": (None,),
    "num_class_embeds": (None,),
    "resnet_skip_time_act": (False,),
    "resnet_out_scale_factor": (1.0, 1),
    "time_embedding_act_fn": (None,),
    "timestep_post_act": (None,),
    "time_cond_proj_dim": (None,),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "attention_type": ("default",),
    "class_embeddings_concat": (False,),
    "mid_block_only_cross_attention": (None, False),
    "cross_attention_norm": (None,),
}


@dataclasses.dataclass(frozen=True)
class TextUNetConfig(UNetFields):
    """The fields of `UNet2DConditionModel`, as diffusers documents them.

    ``attention_head_dim`` is the number of heads, despite its name: one for all levels, or one for
    each. ``upcast_attention`` and ``addition_embed_type_num_heads`` change nothing here.
    """

    NAME = "UNet2DConditionModel"
    STACKED = "transformer_blocks"
    DOWN: ClassVar = {
        "DownBlock2D": Kind(attends=False, sampler="conv"),
        "CrossAttnDownBlock2D": Kind(attends=True, sampler="conv"),
    }
    UP: ClassVar = {
        "UpBlock2D": Kind(attends=False, sampler="conv"),
        "CrossAttnUpBlock2D": Kind(attends=True, sampler="conv"),
    }
    COUNTS = (*UNetFields.COUNTS, "cross_attention_dim", "addition_embed_type_num_heads")
    OPTIONAL_COUNTS = (
        *UNetFields.OPTIONAL_COUNTS,
        "addition_time_embed_dim",
        "projection_class_embeddings_input_dim",
    )
    CHOICES: ClassVar = {
        **UNetFields.CHOICES,
        **OFF,
        "time_embedding_type": ("positional",),
        "mid_block_type": ("UNetMidBlock2DCrossAttn", None),
        "use_linear_projection": (False, True),
        "addition_embed_type": (None, "text_time"),
        "upcast_attention": (False, True, None),
    }

    in_channels: int = 4
    out_channels: int = 4
    down_block_types: tuple[str, ...] = (
        "CrossAttnDownBlock2D",
        "CrossAttnDownBlock2D",
        "CrossAttnDownBlock2D",
        "DownBlock2D",
    )
    mid_block_type: str | None = "UNetMidBlock2DCrossAttn"
    up_block_types: tuple[str, ...] = (
        "UpBlock2D",
        "CrossAttnUpBlock2D",
        "CrossAttnUpBlock2D",
        "CrossAttnUpBlock2D",
    )
    block_out_channels: tuple[int, ...] = (320, 640, 1280, 1280)
    only_cross_attention: bool = False
    cross_attention_dim: int = 1280
    transformer_layers_per_block: int | tuple[int, ...] = 1
    reverse_transformer_layers_per_block: None = None
    encoder_hid_dim: None = None
    encoder_hid_dim_type: None = None
    attention_head_dim: int | tuple[int, ...] = 8
    num_attention_heads: None = None
    dual_cross_attention: bool = False
    use_linear_projection: bool = False
    class_embed_type: None = None
    addition_embed_type: str | None = None
    addition_time_embed_dim: int | None = None
    num_class_embeds: None = None
    upcast_attention: bool = False
    resnet_skip_time_act: bool = False
    resnet_out_scale_factor: float = 1.0
    time_embedding_act_fn: None = None
    timestep_post_act: None = None
    time_cond_proj_dim: None = None
    conv_in_kernel: int = 3
    conv_out_kernel: int = 3
    projection_class_embeddings_input_dim: int | None = None
    attention_type: str = "default"
    class_embeddings_concat: bool = False
    mid_block_only_cross_attention: None = None
    cross_attention_norm: None = None
    addition_embed_type_num_heads: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for heads, channels in zip(self.heads, self.block_out_channels, strict=True):
            if heads > channels:
                raise ValueError(
                    f"attention_head_dim is {self.attention_head_dim}, which are numbers of heads, "
                    f"expected at most {channels}, the number of channels."
                )
        self.by_level("transformer_layers_per_block")
        if self.addition_embed_type is not None and not self.pooled_channels > 0:
            raise ValueError(
                "projection_class_embeddings_input_dim is "
                f"{self.projection_class_embeddings_input_dim} and addition_time_embed_dim is "
                f"{self.addition_time_embed_dim}, expected numbers, the first more than 6 times "
                "the second: addition_embed_type is 'text_time'."
            )

    def by_level(self, name: str) -> tuple[int, ...]:
        """A field that is one number, or one for each level."""
        value = getattr(self, name)
        numbers = value if isinstance(value, tuple) else (value,) * self.levels
        for number in numbers:
            check_count(name, number, "a number, or one for each of block_out_channels")
        if len(numbers) != self.levels:
            raise ValueError(
                f"{name} is {value}, expected {self.levels} numbers, one for each of "
                "block_out_channels."
            )
        return numbers

    @property
    def heads(self) -> tuple[int, ...]:
        """The numbers of heads of the attention layers, by level."""
        return self.by_level("attention_head_dim")

    @property
    def pooled_channels(self) -> int:
        """The number of channels of the pooled embedding of a text, which 6 numbers follow."""
        whole, each = self.projection_class_embeddings_input_dim, self.addition_time_embed_dim
        return 0 if whole is None or each is None else whole - 6 * each

    @property
    def outer_act(self) -> str:
        """The activation outside of the residual layers."""
        return self.act_fn
