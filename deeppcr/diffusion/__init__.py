"""Diffusion and flow models sampled in parallel, with diffusers' schedulers."""

from deeppcr.diffusion.gaussian import Gaussian
from deeppcr.diffusion.guidance import guided
from deeppcr.diffusion.images import Inpaint
from deeppcr.diffusion.sampler import plan, sample
from deeppcr.diffusion.schedule import Schedule

__all__ = [
    "Gaussian",
    "Inpaint",
    "Schedule",
    "guided",
    "plan",
    "sample",
]


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from."""
    return __all__
