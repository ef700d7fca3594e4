"""Heun's method for the probability-flow equation (Karras et al., NeurIPS 2022, algorithm 1).

For ``x = x0 + sigma noise`` with the derivative ``d = (x - x0) / sigma``, a step is two calls of
the model, and two steps of the chain. The first is that of Euler's method, and remembers half of
it:

    x' = x + (sigma' - sigma) d,      y = x + (sigma' - sigma) / 2 d
    x'' = y + (sigma' - sigma) / 2 d'

The last step, to 0, has the first half only.
"""

import numpy as np

from deeppcr.diffusion.config import Config, flag, number
from deeppcr.diffusion.grid import continuous_grid
from deeppcr.diffusion.noise import RAMP_FIELDS, beta_fields, init_noise_sigma
from deeppcr.diffusion.prediction import PREDICTION_FIELD, find_correction
from deeppcr.diffusion.schedulers.euler import predicts_from
from deeppcr.diffusion.table import Scheduler, Table, scaled, tabulate, total
from deeppcr.diffusion.timesteps import time_fields


def table(config: Config, steps: int) -> Table:
    """The table of Heun's method."""
    times, sigmas = continuous_grid(config, steps)
    calls = np.arange(2 * steps - 1)
    first = calls % 2 == 0
    here = sigmas[(calls + 1) // 2]  # of each call: the first, and the others twice
    step = np.diff(sigmas)[calls // 2]
    alpha, predicts = predicts_from(config, here)
    derivative = {"x": 1 / here, "x0": -1 / here}
    return tabulate(
        times[(calls + 1) // 2],
        scale=alpha,
        levels=(1.0, here),
        predicts=predicts,
        update={
            "x": total(
                {"x": np.where(first, 1.0, 0.0), "y": np.where(first, 0.0, 1.0)},
                scaled(np.where(first, step, step / 2), derivative),
            ),
            "y": total({"x": 1.0}, scaled(step / 2, derivative)),
        },
        correct=find_correction(config),
        init_noise_sigma=init_noise_sigma(config, sigmas),
    )


HEUN = Scheduler(
    beta_fields("exp", start=0.00085, end=0.012)
    | RAMP_FIELDS
    | time_fields("linspace")
    | PREDICTION_FIELD
    | {"clip_sample": flag(False), "clip_sample_range": number(1.0)},
    table,
    calls=2,
)
