"""Euler's method for the probability-flow equation (Karras et al., NeurIPS 2022, algorithm 1, without the second stage).

For ``x = x0 + level noise``, in whose variables ``dx / dlevel = (x - x0) / level``; the model sees ``alpha x``:

    x' = r x + (1 - r) x0,    r = level' / level
"""

import numpy as np

from deeppcr.diffusion.config import Config, number, one_of
from deeppcr.diffusion.levels import BETAS
from deeppcr.diffusion.prediction import clean
from deeppcr.diffusion.ramps import RAMP_FIELDS, find_ramp
from deeppcr.diffusion.schedulers.scheduler import Scheduler
from deeppcr.diffusion.schedulers.sigmas import (
    last_level,
    level_at,
    starting_level,
    time_of,
    training_levels,
    variance_preserving,
)
from deeppcr.diffusion.table import Table, tabulate
from deeppcr.diffusion.times import spaced, time_fields

FIELDS = BETAS | time_fields("linspace")


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of Euler's method."""
    trained = training_levels(config)
    times = spaced(config, steps, config["num_train_timesteps"]).astype(np.float32)
    levels = level_at(trained, times)
    if config["interpolation_type"] == "log_linear":
        levels = np.exp(np.linspace(np.log(trained[-1]), np.log(trained[0]), steps + 1))
    ramp = find_ramp(config)
    if ramp:
        first = levels[0] if config["sigma_max"] is None else config["sigma_max"]
        last = levels[-1] if config["sigma_min"] is None else config["sigma_min"]
        levels = ramp(first, last, steps)
        times = time_of(trained, levels)
    levels = np.append(levels, last_level(config, trained))[: steps + 1]
    if config["timestep_type"] == "continuous" and config["prediction_type"] == "v_prediction":
        times = 0.25 * np.log(levels[:-1])
    return euler_steps(config, times, levels, levels[1:])


def euler_steps(
    config: Config,
    times: np.ndarray,
    levels: np.ndarray,
    to: np.ndarray,
    s: np.ndarray | float = 0.0,
) -> Table:
    """Steps from each of the levels but the last ``to`` another one, and then noise of size ``s``."""
    here = levels[:-1]
    alpha, sigma = variance_preserving(here)
    p, q = clean(config["prediction_type"], alpha, sigma)
    return tabulate(
        times.astype(np.float32),
        scale=alpha,
        predicts=(alpha * p, q),
        a=to / here,
        c=1 - to / here,
        s=s,
        init_noise_sigma=starting_level(config, levels),
    )


EULER = Scheduler(
    FIELDS
    | RAMP_FIELDS
    | {
        "prediction_type": one_of("epsilon", "sample", "v_prediction"),
        "interpolation_type": one_of("linear", "log_linear"),
        "sigma_min": number(None, optional=True),
        "sigma_max": number(None, optional=True),
        "timestep_type": one_of("discrete", "continuous"),
        "final_sigmas_type": one_of("zero", "sigma_min"),
    },
    table,
)
