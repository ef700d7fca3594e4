"""DDIM (Song et al., ICLR 2021, equation 12): a combination of predicted sample and noise.

With ``alpha`` and ``sigma`` at this time and ``alpha'`` at the next,

    x' = alpha' x0 + sqrt(1 - alpha'² - s²) noise_seen + s noise
    s² = eta² (1 - alpha'²) / (1 - alpha²) (1 - alpha² / alpha'²)

where ``noise_seen = (x - alpha x0) / sigma`` has the ``x0`` before any correction.
"""

import numpy as np

from deeppcr.diffusion.config import Config, flag
from deeppcr.diffusion.noise import ZERO_SNR_FIELD, alphas_cumprod_at, beta_between, beta_fields
from deeppcr.diffusion.prediction import (
    CLIP_FIELDS,
    PREDICTION_FIELD,
    THRESHOLD_FIELDS,
    find_correction,
    original_from,
)
from deeppcr.diffusion.table import Scheduler, Table, tabulate
from deeppcr.diffusion.timesteps import integer_times, time_fields


def table(config: Config, steps: int) -> Table:
    """The table of DDIM."""
    times = integer_times(config, steps)
    last = (
        1.0 if config["set_alpha_to_one"] else alphas_cumprod_at(config, np.zeros(1, int), 1.0)[0]
    )
    here = alphas_cumprod_at(config, times, last)
    # As in diffusers, the next time is one stride of "leading" spacing away for every spacing.
    there = alphas_cumprod_at(config, times - config["num_train_timesteps"] // steps, last)
    alpha, sigma = np.sqrt(here), np.sqrt(1 - here)
    p, q = original_from(config["prediction_type"], alpha, sigma)
    s = config["eta"] * np.sqrt((1 - there) / (1 - here) * beta_between(here, there))
    seen = np.sqrt(1 - there - s**2) / sigma
    return tabulate(
        times,
        levels=(alpha, sigma),
        predicts=(p, q),
        update={
            "x": {
                "x": seen * (1 - alpha * p),
                "m": seen * -alpha * q,
                "x0": np.sqrt(there),
                "noise": s,
            }
        },
        correct=find_correction(config),
    )


DDIM = Scheduler(
    beta_fields()
    | ZERO_SNR_FIELD
    | time_fields("leading")
    | PREDICTION_FIELD
    | CLIP_FIELDS
    | THRESHOLD_FIELDS
    | {"set_alpha_to_one": flag(True)},
    table,
    options=("eta",),
)
