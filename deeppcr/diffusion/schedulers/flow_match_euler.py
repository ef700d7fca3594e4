"""Euler's method for flow matching (Lipman et al., ICLR 2023): ``x = (1 - level) x0 + level noise``, ``output = noise - x0``.

    x' = x + (level' - level) output,    or with fresh noise at every step    x' = (1 - level') x0 + level' noise

Levels are shifted towards the noise by ``level -> shift level / (1 + (shift - 1) level)`` (Esser et al., ICML 2024, equation 23).
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, off, one_of
from deeppcr.diffusion.ramps import RAMP_FIELDS, find_ramp
from deeppcr.diffusion.schedulers.scheduler import Scheduler
from deeppcr.diffusion.table import Table, tabulate


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of Euler's method for flow matching."""
    levels = _levels(config, steps)
    end = 0.0
    if config["invert_sigmas"]:
        levels, end = 1 - levels, 1.0
    times = (levels * config["num_train_timesteps"]).astype(np.float32)
    there = np.append(levels[1:], end)
    predicts = np.ones(steps), -levels
    if config["stochastic_sampling"]:
        return tabulate(times, predicts=predicts, c=1 - there, s=there)
    return tabulate(times, predicts=predicts, a=1.0, b=there - levels)


def _levels(config: Config, steps: int) -> np.ndarray:
    """The noise levels that the steps go from."""

    def shifted(level: np.ndarray) -> np.ndarray:
        return config["shift"] * level / (1 + (config["shift"] - 1) * level)

    # diffusers shifts the two ends, and then all levels between them once more.
    first, last = shifted(np.array([1.0, 1 / config["num_train_timesteps"]]))
    levels = shifted(np.linspace(first, last, steps))
    if config["shift_terminal"]:
        levels = 1 - (1 - levels) / ((1 - levels[-1]) / (1 - config["shift_terminal"]))
    ramp = find_ramp(config)
    return ramp(levels[0], levels[-1], steps) if ramp else levels


FLOW_MATCH_EULER = Scheduler(
    RAMP_FIELDS
    | {
        "num_train_timesteps": count(1000),
        "shift": number(1.0),
        "use_dynamic_shifting": off(),
        # What these say, only dynamic shifting reads.
        "base_shift": number(0.5, optional=True),
        "max_shift": number(1.15, optional=True),
        "base_image_seq_len": count(256),
        "max_image_seq_len": count(4096),
        "time_shift_type": one_of("exponential", "linear"),
        "invert_sigmas": flag(False),
        "shift_terminal": number(None, optional=True),
        "stochastic_sampling": flag(False),
    },
    table,
)
