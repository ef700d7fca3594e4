"""The UNet of diffusers in flax, loaded from its folder: a model for `deeppcr.diffusion.sample`.

from experiments.networks import load_model
"""

from experiments.networks.load import load_model

__all__ = ["load_model"]
