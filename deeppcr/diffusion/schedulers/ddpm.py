"""DDPM (Ho et al., NeurIPS 2020, equation 7): ``x'`` from its posterior given ``x``, ``x0``.

With ``alpha`` at this time, ``alpha'`` at the next, and ``beta = 1 - alpha² / alpha'²``,

    x' = alpha' beta / (1 - alpha²) x0 + alpha / alpha' (1 - alpha'²) / (1 - alpha²) x + s noise
"""

import numpy as np

from deeppcr.diffusion.config import Config, one_of
from deeppcr.diffusion.noise import BETA_FIELDS, alphas_cumprod_at, beta_between
from deeppcr.diffusion.prediction import (
    CLIP_FIELDS,
    PREDICTION_FIELD,
    THRESHOLD_FIELDS,
    find_correction,
    pred_original_sample,
)
from deeppcr.diffusion.table import Scheduler, Table, tabulate
from deeppcr.diffusion.timesteps import integer_times, time_fields

LEAST_VARIANCE = 1e-20


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of DDPM."""
    times = integer_times(config, steps)
    here = alphas_cumprod_at(config, times, 1.0)
    there = alphas_cumprod_at(config, np.append(times[1:], -1), 1.0)
    beta = beta_between(here, there)
    posterior = np.maximum((1 - there) / (1 - here) * beta, LEAST_VARIANCE)
    variance = beta if config["variance_type"] == "fixed_large" else posterior
    return tabulate(
        times,
        predicts=pred_original_sample(config["prediction_type"], np.sqrt(here), np.sqrt(1 - here)),
        a=np.sqrt(here / there) * (1 - there) / (1 - here),
        c=np.sqrt(there) * beta / (1 - here),
        s=np.where(times > 0, np.sqrt(variance), 0.0),
        correct=find_correction(config),
    )


DDPM = Scheduler(
    BETA_FIELDS
    | time_fields("leading")
    | PREDICTION_FIELD
    | CLIP_FIELDS
    | THRESHOLD_FIELDS
    # Not "fixed_large_log": diffusers takes the square root of the logarithm of a number below 1.
    | {"variance_type": one_of("fixed_small", "fixed_small_log", "fixed_large")},
    table,
)
