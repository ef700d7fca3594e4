"""Latent consistency models (Luo et al., 2023, arXiv 2310.04378).

They predict ``x0``, add noise, and repeat. With ``alpha`` and ``sigma`` at this time, and those of
the next,

    x' = alpha' z + sigma' noise,    z = c_out x0 + c_skip x

and ``x' = z`` in the last step. A few steps suffice, usually four: a parallel method needs about as
many iterations, so there is nothing to gain, and each step forgets all but ``x0``.
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number
from deeppcr.diffusion.noise import ZERO_SNR_FIELD, alphas_cumprod_at, beta_fields
from deeppcr.diffusion.prediction import (
    PREDICTION_FIELD,
    THRESHOLD_FIELDS,
    find_correction,
    original_from,
)
from deeppcr.diffusion.table import Scheduler, Table, tabulate
from deeppcr.diffusion.timesteps import time_fields

SIGMA_DATA = 0.5


def table(config: Config, steps: int) -> Table:
    """The table of latent consistency models."""
    times = _times(config, steps)
    here = alphas_cumprod_at(config, times, 1.0)
    alpha, sigma = np.sqrt(here), np.sqrt(1 - here)
    scaled_times = times * config["timestep_scaling"]
    size = scaled_times**2 + SIGMA_DATA**2
    mean, deviation = np.append(alpha[1:], 1.0), np.append(sigma[1:], 0.0)
    return tabulate(
        times,
        levels=(alpha, sigma),
        predicts=original_from(config["prediction_type"], alpha, sigma),
        update={
            "x": {
                "x": mean * SIGMA_DATA**2 / size,
                "x0": mean * scaled_times / np.sqrt(size),
                "noise": deviation,
            }
        },
        correct=find_correction(config),
    )


def _times(config: Config, steps: int) -> np.ndarray:
    """``[L]``, int32: some of the times of the sampler from which the model was distilled."""
    total, original = config["num_train_timesteps"], config["original_inference_steps"]
    if original > total:
        raise ValueError(
            f"original_inference_steps={original}, expected at most num_train_timesteps={total}."
        )
    if steps > original:
        raise ValueError(f"steps is {steps}, expected at most original_inference_steps={original}.")
    distilled = np.arange(original, 0, -1) * (total // original) - 1
    return distilled[np.linspace(0, original, steps, endpoint=False).astype(int)].astype(np.int32)


LCM = Scheduler(
    beta_fields(start=0.00085, end=0.012, schedule="scaled_linear")
    | ZERO_SNR_FIELD
    | time_fields("leading")
    | PREDICTION_FIELD
    | THRESHOLD_FIELDS
    | {
        "clip_sample": flag(False),
        "clip_sample_range": number(1.0),
        "original_inference_steps": count(50),
        "set_alpha_to_one": flag(True),
        "timestep_scaling": number(10.0),
    },
    table,
)
