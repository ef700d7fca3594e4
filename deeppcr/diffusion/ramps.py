"""Noise levels that fall along a curve from the first to the last, whatever the training times are."""

from collections.abc import Callable

import numpy as np

from deeppcr.diffusion.config import Config, flag, off

RAMP_FIELDS = {
    "use_karras_sigmas": flag(False),
    "use_exponential_sigmas": flag(False),
    "use_beta_sigmas": off(),
}

Ramp = Callable[[float, float, int], np.ndarray]


def karras(first: float, last: float, steps: int) -> np.ndarray:
    """Karras et al., NeurIPS 2022, equation 5, with rho = 7."""
    return np.linspace(first ** (1 / 7), last ** (1 / 7), steps) ** 7


def exponential(first: float, last: float, steps: int) -> np.ndarray:
    """Equal ratios: steps of equal length in the logarithm of the signal-to-noise ratio (Lu et al., NeurIPS 2022)."""
    return np.exp(np.linspace(np.log(first), np.log(last), steps))


RAMPS: dict[str, Ramp] = {
    "use_karras_sigmas": karras,
    "use_exponential_sigmas": exponential,
    "use_lu_lambdas": exponential,
}


def find_ramp(config: Config) -> Ramp | None:
    """The curve that a configuration asks for, if any."""
    wanted = [name for name in RAMPS if config.get(name)]
    if len(wanted) > 1:
        raise ValueError(f"{' and '.join(wanted)} are True, expected at most one of them.")
    return RAMPS[wanted[0]] if wanted else None
