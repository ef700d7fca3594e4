"""Euler's method with ancestral noise: a step to less noise than the next level has, and the rest of it anew.

The posterior of DDPM in the variables ``x0 + level noise``: down to ``level'² / level``, and then noise of the standard deviation
``level' sqrt(1 - level'² / level²)``.
"""

import numpy as np

from deeppcr.diffusion.config import Config, one_of
from deeppcr.diffusion.schedulers.euler import FIELDS, euler_steps
from deeppcr.diffusion.schedulers.scheduler import Scheduler
from deeppcr.diffusion.schedulers.sigmas import level_at, training_levels
from deeppcr.diffusion.table import Table
from deeppcr.diffusion.times import spaced


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of Euler's method with ancestral noise."""
    times = spaced(config, steps, config["num_train_timesteps"]).astype(np.float32)
    levels = np.append(level_at(training_levels(config), times), 0.0)
    here, there = levels[:-1], levels[1:]
    return euler_steps(
        config, times, levels, to=there**2 / here, s=there * np.sqrt(1 - (there / here) ** 2)
    )


EULER_ANCESTRAL = Scheduler(FIELDS | {"prediction_type": one_of("epsilon", "v_prediction")}, table)
