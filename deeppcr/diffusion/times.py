"""At which of the training times a sampler stops by (Lin et al., WACV 2024, table 2)."""

import numpy as np

from deeppcr.diffusion.config import Config, Field, count, one_of


def time_fields(default: str) -> dict[str, Field]:
    """The fields that say how times are spaced."""
    names = dict.fromkeys((default, "leading", "linspace", "trailing"))
    return {"timestep_spacing": one_of(*names), "steps_offset": count(0, least=0)}


def spaced(config: Config, points: int, end: int) -> np.ndarray:
    """Times below ``end``, falling, float64: ``points`` of them, or fewer where a trailing one falls below 0."""
    total, spacing = config["num_train_timesteps"], config["timestep_spacing"]
    if spacing == "linspace":
        return np.linspace(0, end - 1, points)[::-1]
    if spacing == "leading":
        return np.arange(points)[::-1] * float(end // points) + config["steps_offset"]
    # Rounding errors of the stride sometimes make one time too many, which would be -1.
    return np.arange(end, 0, -total / points)[:points].round() - 1
