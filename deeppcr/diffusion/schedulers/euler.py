"""Euler's method for the probability-flow equation (Karras et al., NeurIPS 2022, algorithm 1).

For ``x = x0 + sigma noise`` with ``dx / dsigma = (x - x0) / sigma``, where the model sees ``alpha
x``:

    x' = r x + (1 - r) x0,    r = sigma' / sigma
"""

import numpy as np

from deeppcr.diffusion.config import Config, number, one_of
from deeppcr.diffusion.noise import (
    BETA_FIELDS,
    RAMP_FIELDS,
    alpha_sigma,
    find_ramp,
    init_noise_sigma,
    last_sigma,
    sigmas_at,
    times_of,
    training_sigmas,
)
from deeppcr.diffusion.prediction import PREDICTION_FIELD, pred_original_sample
from deeppcr.diffusion.table import Scheduler, Table, tabulate
from deeppcr.diffusion.timesteps import spaced_times, time_fields

FIELDS = BETA_FIELDS | time_fields("linspace")


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of Euler's method."""
    trained = training_sigmas(config)
    times = spaced_times(config, steps, config["num_train_timesteps"]).astype(np.float32)
    sigmas = sigmas_at(trained, times)
    if config["interpolation_type"] == "log_linear":
        sigmas = np.exp(np.linspace(np.log(trained[-1]), np.log(trained[0]), steps + 1))
    ramp = find_ramp(config)
    if ramp:
        first = sigmas[0] if config["sigma_max"] is None else config["sigma_max"]
        last = sigmas[-1] if config["sigma_min"] is None else config["sigma_min"]
        sigmas = ramp(first, last, steps)
        times = times_of(trained, sigmas)
    sigmas = np.append(sigmas, last_sigma(config, trained))[: steps + 1]
    if config["timestep_type"] == "continuous" and config["prediction_type"] == "v_prediction":
        times = 0.25 * np.log(sigmas[:-1])
    return euler_steps(config, times, sigmas, sigmas[1:])


def euler_steps(
    config: Config,
    times: np.ndarray,
    sigmas: np.ndarray,
    to: np.ndarray,
    s: np.ndarray | float = 0.0,
) -> Table:
    """Steps from all sigmas but the last ``to`` others, and then noise of deviation ``s``."""
    here = sigmas[:-1]
    alpha, sigma = alpha_sigma(here)
    p, q = pred_original_sample(config["prediction_type"], alpha, sigma)
    return tabulate(
        times.astype(np.float32),
        scale=alpha,
        predicts=(alpha * p, q),
        a=to / here,
        c=1 - to / here,
        s=s,
        init_noise_sigma=init_noise_sigma(config, sigmas),
    )


EULER = Scheduler(
    FIELDS
    | RAMP_FIELDS
    | PREDICTION_FIELD
    | {
        "interpolation_type": one_of("linear", "log_linear"),
        "sigma_min": number(None, optional=True),
        "sigma_max": number(None, optional=True),
        "timestep_type": one_of("discrete", "continuous"),
        "final_sigmas_type": one_of("zero", "sigma_min"),
    },
    table,
)
