"""Diffusion and flow models sampled in parallel, with diffusers' schedulers and models."""

from deeppcr.diffusion.guidance import guided
from deeppcr.diffusion.sampler import sample
from deeppcr.diffusion.schedule import Schedule
from deeppcr.diffusion.unet import load_unet

__all__ = ["Schedule", "guided", "load_unet", "sample"]
