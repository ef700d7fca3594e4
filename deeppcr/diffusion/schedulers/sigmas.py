"""What samplers share that go by the noise level ``sigma_t / alpha_t`` and not by the time."""

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.levels import signal

LEAST_SIGNAL = 2**-24  # of diffusers, where rescale_betas_zero_snr leaves none


def training_levels(config: Config) -> np.ndarray:
    """``[T]``, float32, rising: the noise level at every training time."""
    kept = signal(config)
    if config["rescale_betas_zero_snr"]:
        kept[-1] = LEAST_SIGNAL
    return ((1 - kept) / kept) ** 0.5


def level_at(levels: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Noise levels at some times, float64: straight lines between the training times."""
    return np.interp(times, np.arange(len(levels)), levels)


def time_of(levels: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Times that have some noise levels, float64: straight lines in the logarithm of the level."""
    return np.interp(np.log(np.maximum(some, 1e-10)), np.log(levels), np.arange(len(levels)))


def last_level(config: Config, levels: np.ndarray) -> float:
    """The level that the last step goes to."""
    return float(levels[0]) if config["final_sigmas_type"] == "sigma_min" else 0.0


def variance_preserving(level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(alpha, sigma)`` of a noise level: ``alpha² + sigma² = 1``, ``sigma / alpha = level``."""
    alpha = 1 / np.sqrt(level**2 + 1)
    return alpha, level * alpha


def starting_level(config: Config, levels: np.ndarray) -> float:
    """The standard deviation of ``x_T`` for samplers of ``x0 + level noise``: that of ``x0`` counts only for leading times."""
    largest = float(levels.max())
    return (largest**2 + 1) ** 0.5 if config["timestep_spacing"] == "leading" else largest
