"""The schedulers by the names of their classes in diffusers.

A new scheduler is one small file and one line here.
"""

from deeppcr.diffusion.schedulers.ddim import DDIM
from deeppcr.diffusion.schedulers.ddpm import DDPM
from deeppcr.diffusion.schedulers.dpm_solver import DPM_SOLVER_MULTISTEP
from deeppcr.diffusion.schedulers.euler import EULER
from deeppcr.diffusion.schedulers.euler_ancestral import EULER_ANCESTRAL
from deeppcr.diffusion.schedulers.flow_match_euler import FLOW_MATCH_EULER
from deeppcr.diffusion.table import Scheduler

SCHEDULERS: dict[str, Scheduler] = {
    "DDIMParallelScheduler": DDIM,
    "DDIMScheduler": DDIM,
    "DDPMParallelScheduler": DDPM,
    "DDPMScheduler": DDPM,
    "DPMSolverMultistepScheduler": DPM_SOLVER_MULTISTEP,
    "EulerAncestralDiscreteScheduler": EULER_ANCESTRAL,
    "EulerDiscreteScheduler": EULER,
    "FlowMatchEulerDiscreteScheduler": FLOW_MATCH_EULER,
}

__all__ = ["SCHEDULERS"]
