"""What DDPM and DDIM share: they stop by at integer training times, and mix ``x0`` and ``x`` by the signal here and there."""

import numpy as np

from deeppcr.diffusion.config import Config, flag, number, one_of, share
from deeppcr.diffusion.levels import BETAS, signal
from deeppcr.diffusion.times import spaced, time_fields

FIELDS = (
    BETAS
    | time_fields("leading")
    | {
        "prediction_type": one_of("epsilon", "sample", "v_prediction"),
        "clip_sample": flag(True),
        "clip_sample_range": number(1.0),
        "thresholding": flag(False),
        "dynamic_thresholding_ratio": share(0.995),
        "sample_max_value": number(1.0),
    }
)


def integer_times(config: Config, steps: int) -> np.ndarray:
    """``[L]``, int32: the training times of the steps."""
    total = config["num_train_timesteps"]
    if steps > total:
        raise ValueError(f"steps is {steps}, expected at most num_train_timesteps={total}.")
    times = spaced(config, steps, total).round().astype(np.int32)
    if times[0] >= total:
        raise ValueError(
            f"steps_offset={config['steps_offset']} moves the first of {steps} steps to time {times[0]}, expected one below "
            f"num_train_timesteps={total}."
        )
    return times


def signal_at(config: Config, times: np.ndarray, beyond: float) -> np.ndarray:
    """``[L]``: alpha² at some times; ``beyond`` the last one, where times are negative."""
    return np.where(times < 0, beyond, signal(config).astype(np.float64)[times])


def lost(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """``1 - alpha² / alpha'²``, rounded as diffusers does: few digits are left of it, and the noise of 1000 steps shows which."""
    return 1 - (here / there).astype(np.float32).astype(np.float64)
