"""The full loops of diffusers' own tests, with our sampler in the place of their loop.

Model, sample and noise are those of its tests (`tests/schedulers`, class ``SchedulerCommonTest``):
``model(x, t) = x t / (t + 1)``, and numbers from 0 to 1. The expected figures are theirs.
"""

import dataclasses
from typing import Any, NamedTuple
from unittest import mock

import jax.numpy as jnp
import numpy as np
import torch

from deeppcr.diffusion import Schedule, sample
from deeppcr.diffusion import sampler as sampler_module


class Loop(NamedTuple):
    """A test of diffusers.

    Attributes:
        scheduler: its class.
        config: the fields that the test sets.
        total: the sum of the absolute values of the sample at the end, or None.
        mean: their mean, where the sum is not tested.
        steps: how many.
        start: the step that the loop starts with, from a noisy sample.
        rescales: whether it steps from the model's scaled input, in place of the sample itself.
        image: whether samples have two axes besides the channels, or one.
    """

    scheduler: str
    config: dict[str, Any]
    total: float | None = None
    mean: float | None = None
    steps: int = 10
    start: int = 0
    rescales: bool = False
    image: bool = True

    @property
    def expected(self) -> float:
        """The figure of diffusers."""
        return self.total if self.mean is None else self.mean

    @property
    def tolerance(self) -> float:
        """That of diffusers."""
        return 1e-2 if self.mean is None else 1e-3


DDPM = {"beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear"}
CLIPPED = DDPM | {"clip_sample": True}
LONG = DDPM | {"num_train_timesteps": 1100}
SOLVER = DDPM | {"solver_order": 2, "final_sigmas_type": "sigma_min"}
MULTI = SOLVER | {"lower_order_final": False, "thresholding": False, "variance_type": None}
V = {"prediction_type": "v_prediction"}
KARRAS = {"use_karras_sigmas": True}


def loops() -> dict[str, Loop]:
    """By name."""
    found = {}
    for short in ("DDIM", "DDIMParallel"):
        ddim = f"{short}Scheduler"
        found |= {
            f"{short} no noise": Loop(ddim, CLIPPED, 172.0067),
            f"{short} v": Loop(ddim, CLIPPED | V, 52.5302),
            f"{short} alpha to one": Loop(ddim, CLIPPED | {"beta_start": 0.01}, 149.8295),
            f"{short} no alpha to one": Loop(
                ddim, CLIPPED | {"beta_start": 0.01, "set_alpha_to_one": False}, 149.0784
            ),
            f"{short} noise": Loop(ddim, CLIPPED, 354.5418, start=8),
        }
    for short in ("DDPM", "DDPMParallel"):
        ddpm = f"{short}Scheduler"
        found |= {
            f"{short} no noise": Loop(ddpm, CLIPPED, 258.9606, steps=1000),
            f"{short} v": Loop(ddpm, CLIPPED | V, 202.0296, steps=1000),
            f"{short} noise": Loop(ddpm, CLIPPED, 387.9466, steps=1000, start=998),
        }
    pndm = "PNDMScheduler"
    found |= {
        "PNDM no noise": Loop(pndm, DDPM, 198.1318),
        "PNDM v": Loop(pndm, DDPM | V, 67.3986),
        "PNDM alpha to one": Loop(
            pndm, DDPM | {"beta_start": 0.01, "set_alpha_to_one": True}, 230.0399
        ),
        "PNDM no alpha to one": Loop(pndm, DDPM | {"beta_start": 0.01}, 186.9482),
    }
    for short, plain, v, karras, noisy in (
        ("HeunDiscrete", 0.1233, 4.6934e-07, 0.00015, 75074.8906),
        ("LMSDiscrete", 1006.388, 0.0017, 3812.9927, 27663.6895),
        ("EulerDiscrete", 10.0807, 0.0002, 124.52299, 57062.9297),
        ("EulerAncestralDiscrete", 152.3192, 108.4439, None, 56163.0508),
    ):
        name = f"{short}Scheduler"
        found |= {
            f"{short} no noise": Loop(name, LONG, plain, rescales=True),
            f"{short} v": Loop(name, LONG | V, v, rescales=True),
            f"{short} noise": Loop(name, LONG, noisy, start=8, rescales=True),
        }
        if karras is not None:
            found[f"{short} karras"] = Loop(name, LONG | KARRAS, karras, rescales=True)
    multi, unipc, deis = (
        "DPMSolverMultistepScheduler",
        "UniPCMultistepScheduler",
        "DEISMultistepScheduler",
    )
    threshold = {"thresholding": True, "dynamic_thresholding_ratio": 0.87, "sample_max_value": 0.5}
    found |= {
        "DPM no noise": Loop(multi, MULTI, mean=0.3301),
        "DPM threshold": Loop(multi, MULTI | threshold, mean=1.1364),
        "DPM v": Loop(multi, MULTI | V, mean=0.2251),
        "DPM karras v": Loop(multi, MULTI | V | KARRAS, mean=0.2096),
        "DPM lu v": Loop(multi, MULTI | V | {"use_lu_lambdas": True}, mean=0.1554),
        "DPM noise": Loop(multi, MULTI, 318.4111, start=5),
        "UniPC no noise": Loop(unipc, SOLVER, mean=0.2464),
        "UniPC noise": Loop(unipc, SOLVER, 315.5757, start=8),
        "UniPC karras": Loop(unipc, SOLVER | KARRAS, mean=0.2925),
        "UniPC v": Loop(unipc, SOLVER | V, mean=0.1014),
        "UniPC karras v": Loop(unipc, SOLVER | KARRAS | V, mean=0.1966),
        "UniPC 1D no noise": Loop(unipc, SOLVER, mean=0.2441, image=False),
        "UniPC 1D noise": Loop(unipc, SOLVER, 39.0870, start=8, image=False),
        "UniPC 1D karras": Loop(unipc, SOLVER | KARRAS, mean=0.2898, image=False),
        "UniPC 1D v": Loop(unipc, SOLVER | V, mean=0.1014, image=False),
        "UniPC 1D karras v": Loop(unipc, SOLVER | KARRAS | V, mean=0.1944, image=False),
        "DEIS no noise": Loop(deis, DDPM, mean=0.23916),
        "DEIS noise": Loop(deis, DDPM, 315.3016, start=8),
        "DEIS v": Loop(deis, DDPM | V, mean=0.091),
        "LCM one step": Loop("LCMScheduler", {}, 18.7097, steps=1),
        "LCM": Loop("LCMScheduler", {}, 197.7616),
    }
    return found


LOOPS = loops()

CUSTOM = "custom timesteps: `Schedule` takes none"
BATCH = "`batch_step_no_noise`: steps at times that no loop has"
# By scheduler, besides what is no loop (saving and loading, shapes, half precision).
NOT_RUN = {
    "DDIMParallelScheduler": BATCH,
    "DDPMParallelScheduler": f"{BATCH}; {CUSTOM}",
    "DDPMScheduler": CUSTOM,
    "DPMSolverMultistepScheduler": CUSTOM,
    "EulerDiscreteScheduler": CUSTOM + ", nor sigmas for other than flow matching",
    "FlowMatchEulerDiscreteScheduler": "diffusers has no such test",
    "HeunDiscreteScheduler": CUSTOM,
    "LCMScheduler": CUSTOM,
}


@dataclasses.dataclass(frozen=True, repr=False)
class Rescaled(Schedule):
    """A schedule for loops that, unlike those of pipelines, step from the model's scaled input."""

    def table(self, steps, start=0):
        table = super().table(steps, start)

        def from_scaled(row):
            return row | ({"x": row["x"] * table.scale} if "x" in row else {})

        return dataclasses.replace(
            table,
            predict=from_scaled(table.predict),
            update={name: from_scaled(row) for name, row in table.update.items()},
        )


def numbers(loop, flipped=False):
    """The sample of diffusers' tests, or its noise: ``[4, 3, 8, 8]``, or ``[4, 3, 8]``."""
    shape = (3, 8, 8, 4) if loop.image else (3, 8, 4)
    count = np.prod(shape)
    values = np.arange(count)[:: -1 if flipped else 1].astype(np.float32) / np.float32(count)
    return np.moveaxis(values.reshape(shape), -1, 0)


def begin(loop, schedule):
    """The sample that the loop begins with."""
    x = numbers(loop).astype(np.float64) * schedule.init_noise_sigma(loop.steps)
    if not loop.start:
        return x
    noise = numbers(loop, flipped=True).astype(np.float64)
    return schedule.add_noise(x, noise, steps=loop.steps, start=loop.start)


def drawn(key, steps, x):
    """The noise that torch draws for a loop."""
    generator = torch.manual_seed(0)
    return jnp.asarray(
        np.stack([torch.randn(x.shape, generator=generator).numpy() for _ in range(steps)]), x.dtype
    )


def run(loop, method):
    """The sample at the end of our loop."""
    schedule = Schedule.from_config({"_class_name": loop.scheduler} | loop.config)
    if loop.rescales:
        schedule = Rescaled(schedule.scheduler, schedule.config)
    x = jnp.asarray(begin(loop, schedule))

    def model(x, t):
        return x * t.astype(x.dtype) / (t.astype(x.dtype) + 1)

    with mock.patch.object(sampler_module, "step_noise", drawn):
        solution = sample(
            model, schedule, x, steps=loop.steps, start=loop.start, key=0, method=method
        )
    return np.asarray(solution.value)


def found(loop, method="sequential"):
    """Ours of the figure that diffusers expects."""
    values = np.abs(run(loop, method))
    return float(values.sum() if loop.mean is None else values.mean())
