"""Euler's method for flow matching (Lipman et al., ICLR 2023).

Here ``x = (1 - sigma) x0 + sigma noise`` and ``output = noise - x0``; the second form adds fresh
noise:

    x' = x + (sigma' - sigma) output    or    x' = (1 - sigma') x0 + sigma' noise

Sigmas are shifted towards the noise by ``sigma -> shift sigma / (1 + (shift - 1) sigma)`` (Esser et
al., ICML 2024, equation 23).
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, off, one_of
from deeppcr.diffusion.noise import RAMP_FIELDS, find_ramp
from deeppcr.diffusion.table import Scheduler, Table, tabulate


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of Euler's method for flow matching."""
    sigmas = _sigmas(config, steps)
    end = 0.0
    if config["invert_sigmas"]:
        sigmas, end = 1 - sigmas, 1.0
    times = (sigmas * config["num_train_timesteps"]).astype(np.float32)
    there = np.append(sigmas[1:], end)
    predicts = np.ones(steps), -sigmas
    if config["stochastic_sampling"]:
        return tabulate(times, predicts=predicts, c=1 - there, s=there)
    return tabulate(times, predicts=predicts, a=1.0, b=there - sigmas)


def _sigmas(config: Config, steps: int) -> np.ndarray:
    """The sigmas that the steps go from."""

    def shifted(sigma: np.ndarray) -> np.ndarray:
        return config["shift"] * sigma / (1 + (config["shift"] - 1) * sigma)

    # diffusers shifts the two ends, and then all sigmas between them once more.
    first, last = shifted(np.array([1.0, 1 / config["num_train_timesteps"]]))
    sigmas = shifted(np.linspace(first, last, steps))
    if config["shift_terminal"]:
        sigmas = 1 - (1 - sigmas) / ((1 - sigmas[-1]) / (1 - config["shift_terminal"]))
    ramp = find_ramp(config)
    return ramp(sigmas[0], sigmas[-1], steps) if ramp else sigmas


FLOW_MATCH_EULER = Scheduler(
    RAMP_FIELDS
    | {
        "num_train_timesteps": count(1000),
        "shift": number(1.0),
        "use_dynamic_shifting": off(),
        # Only dynamic shifting, which is off, reads the next five.
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
