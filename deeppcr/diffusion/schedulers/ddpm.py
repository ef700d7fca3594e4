"""DDPM (Ho et al., NeurIPS 2020, equation 7): ``x'`` from its posterior given ``x``, ``x0``.

With ``alpha`` at this time, ``alpha'`` at the next, and ``beta = 1 - alpha² / alpha'²``,

    x' = alpha' beta / (1 - alpha²) x0 + alpha / alpha' (1 - alpha'²) / (1 - alpha²) x + s noise

where ``s²`` is the variance of the posterior (fixed_small), ``beta`` (fixed_large), or learned:
any, or between these two in the logarithm (learned_range).
"""

import numpy as np

from deeppcr.diffusion.config import Config, one_of
from deeppcr.diffusion.noise import (
    ZERO_SNR_FIELD,
    alphas_cumprod_at,
    beta_between,
    beta_fields,
)
from deeppcr.diffusion.prediction import (
    CLIP_FIELDS,
    PREDICTION_FIELD,
    THRESHOLD_FIELDS,
    find_correction,
    original_from,
)
from deeppcr.diffusion.table import Scheduler, Table, tabulate
from deeppcr.diffusion.timesteps import integer_times, time_fields
from deeppcr.diffusion.variance import Learned

LEAST_VARIANCE = 1e-20


def table(config: Config, steps: int) -> Table:
    """The table of DDPM."""
    times = integer_times(config, steps)
    here = alphas_cumprod_at(config, times, 1.0)
    there = alphas_cumprod_at(config, np.append(times[1:], -1), 1.0)
    beta = beta_between(here, there)
    posterior = np.maximum((1 - there) / (1 - here) * beta, LEAST_VARIANCE)
    variance, learned = posterior, None
    alpha, sigma = np.sqrt(here), np.sqrt(1 - here)
    match config["variance_type"]:
        # For the logarithm diffusers returns NaN: it takes its square root. The two are one.
        case "fixed_large" | "fixed_large_log":
            variance = beta
        case "learned":
            variance = np.ones(steps)
            learned = Learned("learned", np.where(times > 0, 1.0, 0.0))
        case "learned_range":
            learned = Learned(
                "learned_range", np.where(times > 0, np.log(beta / posterior) / 2, 0.0)
            )
    return tabulate(
        times,
        levels=(alpha, sigma),
        predicts=original_from(config["prediction_type"], alpha, sigma),
        update={
            "x": {
                "x": np.sqrt(here / there) * (1 - there) / (1 - here),
                "x0": np.sqrt(there) * beta / (1 - here),
                "noise": np.where(times > 0, np.sqrt(variance), 0.0),
            }
        },
        correct=find_correction(config),
        learned=learned,
    )


DDPM = Scheduler(
    beta_fields("sigmoid", "laplace")
    | ZERO_SNR_FIELD
    | time_fields("leading")
    | PREDICTION_FIELD
    | CLIP_FIELDS
    | THRESHOLD_FIELDS
    | {
        "variance_type": one_of(
            "fixed_small",
            "fixed_small_log",
            "fixed_large",
            "fixed_large_log",
            "learned",
            "learned_range",
        )
    },
    table,
)
