"""Networks of diffusers in flax, by the names of their classes.

A new network is a folder with its `config` and its `model`, and a `Network` here. The other modules
derive from flax's classes: they are imported when a network is loaded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from deeppcr.diffusion.models.config import ModelConfig
from deeppcr.diffusion.models.dit.config import DiTConfig
from deeppcr.diffusion.models.text_unet.config import TextUNetConfig
from deeppcr.diffusion.models.unet.config import UNetConfig


class Network(NamedTuple):
    """A kind of network.

    Attributes:
        config: its configuration.
        build: the flax module of a configuration. Its parameters have the names and shapes of the
            weights.
    """

    config: type[ModelConfig]
    build: Callable[[Any], Any]


def _dit(config: DiTConfig) -> Any:
    from deeppcr.diffusion.models.dit.model import DiT

    return DiT(config)


def _text_unet(config: TextUNetConfig) -> Any:
    from deeppcr.diffusion.models.text_unet.model import TextUNet

    return TextUNet(config)


def _unet(config: UNetConfig) -> Any:
    from deeppcr.diffusion.models.unet.model import UNet

    return UNet(config)


MODELS = {
    "DiTTransformer2DModel": Network(DiTConfig, _dit),
    "Transformer2DModel": Network(DiTConfig, _dit),
    "UNet2DConditionModel": Network(TextUNetConfig, _text_unet),
    "UNet2DModel": Network(UNetConfig, _unet),
}

__all__ = ["MODELS", "Network"]
