"""Diffusion and flow models sampled in parallel, with diffusers' schedulers and models."""

from deeppcr.diffusion.guidance import guided
from deeppcr.diffusion.images import Inpaint
from deeppcr.diffusion.predicted import pred_original_sample
from deeppcr.diffusion.sampler import sample
from deeppcr.diffusion.schedule import Schedule
from deeppcr.diffusion.unet import load_unet

__all__ = ["Inpaint", "Schedule", "guided", "load_unet", "pred_original_sample", "sample"]
