"""Euler's method with ancestral noise: a step below the next sigma, then fresh noise.

It is the posterior of DDPM for ``x = x0 + sigma noise``: a step to ``sigma'² / sigma``, and then
noise of the standard deviation ``sigma' sqrt(1 - sigma'² / sigma²)``.
"""

import numpy as np

from deeppcr.diffusion.config import Config, one_of
from deeppcr.diffusion.noise import sigmas_at, training_sigmas
from deeppcr.diffusion.schedulers.euler import FIELDS, euler_steps
from deeppcr.diffusion.table import Scheduler, Table
from deeppcr.diffusion.timesteps import spaced_times


def table(config: Config, steps: int) -> Table:
    """The table of Euler's method with ancestral noise."""
    times = spaced_times(config, steps, config["num_train_timesteps"]).astype(np.float32)
    sigmas = np.append(sigmas_at(training_sigmas(config), times), 0.0)
    here, there = sigmas[:-1], sigmas[1:]
    return euler_steps(
        config, times, sigmas, to=there**2 / here, s=there * np.sqrt(1 - (there / here) ** 2)
    )


EULER_ANCESTRAL = Scheduler(FIELDS | {"prediction_type": one_of("epsilon", "v_prediction")}, table)
