"""The training times at which a sampler evaluates its model (Lin et al., WACV 2024, table 2)."""

import numpy as np

from deeppcr.diffusion.config import Config, Field, count, one_of


def time_fields(default: str) -> dict[str, Field]:
    """The fields for the spacing of times."""
    names = dict.fromkeys((default, "leading", "linspace", "trailing"))
    return {"timestep_spacing": one_of(*names), "steps_offset": count(0, least=0)}


def spaced_times(config: Config, points: int, end: int) -> np.ndarray:
    """Falling times below ``end``, float64: ``points``, or fewer if trailing ones pass 0."""
    total, spacing = config["num_train_timesteps"], config["timestep_spacing"]
    if spacing == "linspace":
        return np.linspace(0, end - 1, points)[::-1]
    if spacing == "leading":
        return np.arange(points)[::-1] * float(end // points) + config["steps_offset"]
    # Rounding of the stride sometimes adds a time, which would be -1.
    return np.arange(end, 0, -total / points)[:points].round() - 1


def integer_times(config: Config, steps: int) -> np.ndarray:
    """``[L]``, int32: the training times of the steps of DDPM and DDIM."""
    total = config["num_train_timesteps"]
    if steps > total:
        raise ValueError(f"steps is {steps}, expected at most num_train_timesteps={total}.")
    times = spaced_times(config, steps, total).round().astype(np.int32)
    if times[0] >= total:
        raise ValueError(
            f"steps_offset={config['steps_offset']} moves the first of {steps} steps to time "
            f"{times[0]}, expected one below num_train_timesteps={total}."
        )
    return times
