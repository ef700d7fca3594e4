"""The configuration of diffusers' `DiTTransformer2DModel`.

Source: ``models/transformers/dit_transformer_2d.py``. The published files name an older class,
`Transformer2DModel`, which has more fields.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from deeppcr.diffusion.models.config import ModelConfig, check_number

OLD_CLASS = "Transformer2DModel"


@dataclasses.dataclass(frozen=True)
class DiTConfig(ModelConfig):
    """The fields of `DiTTransformer2DModel`, as diffusers documents them.

    ``dropout`` is for training. ``norm_num_groups`` and ``upcast_attention`` change nothing, as in
    diffusers. ``norm_eps`` is that of the norm before the feed-forward layers only.
    """

    NAME = "DiTTransformer2DModel"
    STACKED = "transformer_blocks"
    IGNORED: ClassVar = {
        "attention_type": ("default",),
        "caption_channels": (None,),
        "cross_attention_dim": (None,),
        "double_self_attention": (False,),
        "interpolation_scale": (None,),
        "num_vector_embeds": (None,),
        "only_cross_attention": (False,),
        "use_additional_conditions": (None, False),
        "use_linear_projection": (False,),
    }
    COUNTS = (
        "num_attention_heads",
        "attention_head_dim",
        "in_channels",
        "num_layers",
        "norm_num_groups",
        "sample_size",
        "patch_size",
        "num_embeds_ada_norm",
    )
    OPTIONAL_COUNTS = ("out_channels",)
    CHOICES: ClassVar = {
        "attention_bias": (False, True),
        "activation_fn": (
            "gelu",
            "gelu-approximate",
            "geglu",
            "geglu-approximate",
            "swiglu",
            "linear-silu",
        ),
        "upcast_attention": (False, True),
        "norm_type": ("ada_norm_zero",),
        "norm_elementwise_affine": (False, True),
    }

    num_attention_heads: int = 16
    attention_head_dim: int = 72
    in_channels: int = 4
    out_channels: int | None = None
    num_layers: int = 28
    dropout: float = 0.0
    norm_num_groups: int = 32
    attention_bias: bool = True
    sample_size: int = 32
    patch_size: int = 2
    activation_fn: str = "gelu-approximate"
    num_embeds_ada_norm: int = 1000
    upcast_attention: bool = False
    norm_type: str = "ada_norm_zero"
    norm_elementwise_affine: bool = False
    norm_eps: float = 1e-5

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """The config that ``config.json`` holds; see `ModelConfig.read`."""
        if found.get("_class_name") == OLD_CLASS:
            found = {"norm_type": "layer_norm"} | dict(found)  # the default of that class
        return super().read(found)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("dropout", self.dropout)
        check_number("norm_eps", self.norm_eps, above=0)
        if self.width % 4:
            raise ValueError(
                f"num_attention_heads * attention_head_dim is {self.width}, expected a multiple of "
                "4: sines and cosines of two coordinates."
            )

    @property
    def width(self) -> int:
        """The number of channels of a token."""
        return self.num_attention_heads * self.attention_head_dim
