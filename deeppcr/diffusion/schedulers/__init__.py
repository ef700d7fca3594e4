"""The schedulers by the names of their classes in diffusers.

A new scheduler is a function that fills a table, and one line here.
"""

from deeppcr.diffusion.schedulers.ddpm import DDIM, DDPM, LCM
from deeppcr.diffusion.schedulers.deis import DEIS
from deeppcr.diffusion.schedulers.dpm_solver import DPM_SOLVER_MULTISTEP
from deeppcr.diffusion.schedulers.euler import EULER, EULER_ANCESTRAL, HEUN, LMS
from deeppcr.diffusion.schedulers.flow_match import FLOW_MATCH_EULER
from deeppcr.diffusion.schedulers.pndm import PNDM
from deeppcr.diffusion.schedulers.unipc import UNIPC
from deeppcr.diffusion.table import Scheduler

SCHEDULERS: dict[str, Scheduler] = {
    "DDIMParallelScheduler": DDIM,
    "DDIMScheduler": DDIM,
    "DDPMParallelScheduler": DDPM,
    "DDPMScheduler": DDPM,
    "DEISMultistepScheduler": DEIS,
    "DPMSolverMultistepScheduler": DPM_SOLVER_MULTISTEP,
    "EulerAncestralDiscreteScheduler": EULER_ANCESTRAL,
    "EulerDiscreteScheduler": EULER,
    "FlowMatchEulerDiscreteScheduler": FLOW_MATCH_EULER,
    "HeunDiscreteScheduler": HEUN,
    "LCMScheduler": LCM,
    "LMSDiscreteScheduler": LMS,
    "PNDMScheduler": PNDM,
    "UniPCMultistepScheduler": UNIPC,
}

# Schedulers of diffusers that are not here, and one that samples the same models.
INSTEAD = {
    "DPMSolverSDEScheduler": "DPMSolverMultistepScheduler with algorithm_type='sde-dpmsolver++'",
    "DPMSolverSinglestepScheduler": "DPMSolverMultistepScheduler",
    "FlowMatchHeunDiscreteScheduler": "FlowMatchEulerDiscreteScheduler",
    "FlowMatchLCMScheduler": "FlowMatchEulerDiscreteScheduler with stochastic_sampling=True",
    "IPNDMScheduler": "PNDMScheduler",
    "KDPM2AncestralDiscreteScheduler": "EulerAncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler": "HeunDiscreteScheduler",
    "SASolverScheduler": "DPMSolverMultistepScheduler with algorithm_type='sde-dpmsolver++'",
    "TCDScheduler": "LCMScheduler",
    "UnCLIPScheduler": "DDPMScheduler with variance_type='learned_range'",
}

__all__ = ["INSTEAD", "SCHEDULERS"]
