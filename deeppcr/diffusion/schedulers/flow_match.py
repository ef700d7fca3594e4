"""Euler's method for flow matching (Lipman et al., ICLR 2023).

Here ``x = (1 - sigma) x0 + sigma noise`` and ``output = noise - x0``; the second form adds fresh
noise:

    x' = x + (sigma' - sigma) output    or    x' = (1 - sigma') x0 + sigma' noise

Sigmas are shifted towards the noise: by ``shift``, or by a ``mu`` that depends on the size of the
image.
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, one_of
from deeppcr.diffusion.grid import (
    RAMP_FIELDS,
    find_ramp,
    find_shift,
    given_sigmas,
    shifted,
    stretched,
)
from deeppcr.diffusion.table import Scheduler, Table, tabulate


def flow_match(config: Config, steps: int) -> Table:
    """The table of Euler's method for flow matching."""
    sigmas, end = _sigmas(config, steps), 0.0
    if config["invert_sigmas"]:
        sigmas, end = 1 - sigmas, 1.0
    there = np.append(sigmas[1:], end)
    if config["stochastic_sampling"]:
        x = {"x0": 1 - there, "noise": there}
    else:
        x = {"x": np.ones(steps), "m": there - sigmas}
    return tabulate(
        {"prediction_type": "flow_prediction"},
        (sigmas * config["num_train_timesteps"]).astype(np.float32),
        levels=(1 - sigmas, sigmas),
        update={"x": x},
    )


def _sigmas(config: Config, steps: int) -> np.ndarray:
    """The sigmas that the steps go from."""
    shift = find_shift(config, "shift")
    sigmas = given_sigmas(config, steps)
    if sigmas is None:
        ends = np.array([1.0, 1 / config["num_train_timesteps"]])
        # diffusers shifts the two ends, and then all sigmas between them once more; with dynamic
        # shifting, only once.
        ends = ends if config["use_dynamic_shifting"] else shifted(ends, shift)
        sigmas = np.linspace(ends[0], ends[1], steps)
    sigmas = stretched(config, shifted(sigmas, shift))
    ramp = find_ramp(config)
    return ramp(sigmas[0], sigmas[-1], steps) if ramp else sigmas


FLOW_MATCH_EULER = Scheduler(
    RAMP_FIELDS
    | {
        "num_train_timesteps": count(1000),
        "shift": number(1.0),
        "use_dynamic_shifting": flag(False),
        "base_shift": number(0.5, optional=True),
        "max_shift": number(1.15, optional=True),
        "base_image_seq_len": count(256),
        "max_image_seq_len": count(4096),
        "time_shift_type": one_of("exponential", "linear"),
        "invert_sigmas": flag(False),
        "shift_terminal": number(None),
        "stochastic_sampling": flag(False),
    },
    flow_match,
    options=("mu", "sigmas"),
)
