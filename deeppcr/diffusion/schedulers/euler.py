"""Euler's method for the probability-flow equation (Karras et al., NeurIPS 2022, algorithm 1).

For ``x = x0 + sigma noise`` with ``dx / dsigma = (x - x0) / sigma``, where the model sees ``alpha
x``:

    x' = r x + (1 - r) x0,    r = sigma' / sigma
"""

import numpy as np

from deeppcr.diffusion.config import Config, number, one_of
from deeppcr.diffusion.grid import continuous_grid
from deeppcr.diffusion.noise import (
    RAMP_FIELDS,
    ZERO_SNR_FIELD,
    alpha_sigma,
    beta_fields,
    init_noise_sigma,
)
from deeppcr.diffusion.prediction import PREDICTION_FIELD, original_from
from deeppcr.diffusion.table import Column, Scheduler, Table, tabulate
from deeppcr.diffusion.timesteps import time_fields

FIELDS = beta_fields() | ZERO_SNR_FIELD | time_fields("linspace")


def table(config: Config, steps: int) -> Table:
    """The table of Euler's method."""
    times, sigmas = continuous_grid(config, steps)
    if config["timestep_type"] == "continuous" and config["prediction_type"] == "v_prediction":
        times = (0.25 * np.log(sigmas[:-1])).astype(np.float32)
    return euler_steps(config, times, sigmas, sigmas[1:])


def euler_steps(
    config: Config, times: np.ndarray, sigmas: np.ndarray, to: np.ndarray, s: Column = 0.0
) -> Table:
    """Steps from all sigmas but the last ``to`` others, and then noise of deviation ``s``."""
    here = sigmas[:-1]
    alpha, predicts = predicts_from(config, here)
    return tabulate(
        times,
        scale=alpha,
        levels=(1.0, here),
        predicts=predicts,
        update={"x": {"x": to / here, "x0": 1 - to / here, "noise": s}},
        init_noise_sigma=init_noise_sigma(config, sigmas),
    )


def predicts_from(
    config: Config, sigmas: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """``alpha``, and ``(p, q)`` for ``x = x0 + sigma noise``: the model sees ``alpha x``."""
    alpha, sigma = alpha_sigma(sigmas)
    p, q = original_from(config["prediction_type"], alpha, sigma)
    return alpha, (alpha * p, q)


EULER = Scheduler(
    FIELDS
    | RAMP_FIELDS
    | PREDICTION_FIELD
    | {
        "interpolation_type": one_of("linear", "log_linear"),
        "sigma_min": number(None),
        "sigma_max": number(None),
        "timestep_type": one_of("discrete", "continuous"),
        "final_sigmas_type": one_of("zero", "sigma_min"),
    },
    table,
)
