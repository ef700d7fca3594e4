"""Diffusion and flow models sampled in parallel, with diffusers' schedulers and models."""

from deeppcr.diffusion.guidance import guided
from deeppcr.diffusion.load import load_model, load_unet
from deeppcr.diffusion.sampler import sample
from deeppcr.diffusion.schedule import Schedule

__all__ = ["Schedule", "guided", "load_model", "load_unet", "sample"]
