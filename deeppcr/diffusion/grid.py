"""The sigmas between which solvers go, and the times at which they call the model."""

import math

import numpy as np

from deeppcr.diffusion.config import Config, flag, number, one_of
from deeppcr.diffusion.noise import (
    alpha_sigma,
    alphas_cumprod,
    find_ramp,
    last_sigma,
    sigmas_at,
    times_of,
    training_sigmas,
)
from deeppcr.diffusion.timesteps import spaced_times

FLOW_FIELDS = {
    "use_flow_sigmas": flag(False),
    "flow_shift": number(1.0),
    "use_dynamic_shifting": flag(False),
    "time_shift_type": one_of("exponential"),
}
Grid = tuple[np.ndarray, np.ndarray]
AlphaSigma = tuple[np.ndarray, np.ndarray]


def continuous_grid(config: Config, steps: int) -> Grid:
    """``[L]``, float32: times; ``[L + 1]``: sigmas, for samplers that go by ``x_0 + sigma noise``.

    Times are between the training times.
    """
    trained = training_sigmas(config)
    times = spaced_times(config, steps, config["num_train_timesteps"]).astype(np.float32)
    sigmas = sigmas_at(trained, times)
    if config.get("interpolation_type") == "log_linear":
        sigmas = np.exp(np.linspace(np.log(trained[-1]), np.log(trained[0]), steps + 1))
    if ramp := find_ramp(config):
        sigmas = ramp(*_ends(config, sigmas), steps)
        times = times_of(trained, sigmas).astype(np.float32)
    return times, np.append(sigmas, last_sigma(config, trained))[: steps + 1]


def solver_grid(config: Config, steps: int, cut: bool = False) -> Grid:
    """``[L]``, int32: times; ``[L]``: sigmas, for solvers in log(alpha / sigma).

    Args:
        cut: times of sigmas that lie between training times are cut off, and not rounded. So are
            those of exponential and beta sigmas, as in diffusers.
    """
    trained = training_sigmas(config)
    if ramp := find_ramp(config):
        sigmas = ramp(*_ends(config, trained[::-1]), steps)
        times = times_of(trained, sigmas)
        cut = cut or config["use_exponential_sigmas"] or config["use_beta_sigmas"]
        return (times if cut else times.round()).astype(np.int32), sigmas
    left_out = _left_out(config)
    # The sample itself counts as one more time, except for trailing times.
    points = steps if config["timestep_spacing"] == "trailing" else steps + 1
    times = spaced_times(config, points, config["num_train_timesteps"] - left_out)[:steps]
    times = times.round().astype(np.int32)
    if len(times) < steps:
        raise ValueError(
            f"lambda_min_clipped={config['lambda_min_clipped']} with timestep_spacing='trailing' "
            f"leaves {len(times)} of {steps} steps, expected another spacing."
        )
    return times, sigmas_at(trained, times)


def flow_grid(config: Config, steps: int) -> Grid:
    """The same for flow matching: by sigmas with equal steps down to 0, shifted to the noise."""
    total = config["num_train_timesteps"]
    even = (1 - np.linspace(1, 1 / total, steps + 1))[:0:-1]  # rounded as in diffusers
    sigmas = shifted(even, find_shift(config, "flow_shift"))
    return (sigmas * total).astype(np.int32), rounded(sigmas)


def rounded(sigmas: np.ndarray) -> np.ndarray:
    """Sigmas as diffusers keeps them, in float32: near 1, ``alpha = 1 - sigma`` has few digits."""
    return sigmas.astype(np.float32).astype(np.float64)


def shifted(sigmas: np.ndarray, shift: float) -> np.ndarray:
    """Sigmas of flow matching, moved to the noise (Esser et al., ICML 2024, equation 23)."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def find_shift(config: Config, name: str) -> float:
    """The shift: that of the field ``name``, or from ``mu`` for dynamic shifting."""
    if not config["use_dynamic_shifting"]:
        return float(config[name])
    mu: float = config["mu"]
    return math.exp(mu) if config["time_shift_type"] == "exponential" else mu


def stretched(config: Config, sigmas: np.ndarray) -> np.ndarray:
    """Sigmas whose last is ``shift_terminal``, if there is one."""
    if not config["shift_terminal"]:
        return sigmas
    return 1 - (1 - sigmas) / ((1 - sigmas[-1]) / (1 - config["shift_terminal"]))


def given_sigmas(config: Config, steps: int) -> np.ndarray | None:
    """The sigmas that were given, as many as there are steps."""
    sigmas = config.get("sigmas")
    if sigmas is None:
        return None
    if len(sigmas) != steps:
        raise ValueError(f"steps is {steps}, but the schedule has {len(sigmas)} sigmas of its own.")
    return rounded(np.asarray(sigmas))


def split_sigmas(config: Config, sigmas: np.ndarray) -> AlphaSigma:
    """``(alpha, sigma)`` of a grid."""
    return (1 - sigmas, sigmas) if config["use_flow_sigmas"] else alpha_sigma(sigmas)


def _ends(config: Config, sigmas: np.ndarray) -> tuple[float, float]:
    """The first and last sigma of a ramp."""
    first, last = config.get("sigma_max"), config.get("sigma_min")
    return (
        float(sigmas[0] if first is None else first),
        float(sigmas[-1] if last is None else last),
    )


def _left_out(config: Config) -> int:
    """How many of the noisiest training times ``lambda_min_clipped`` leaves out."""
    least = config.get("lambda_min_clipped", -np.inf)
    alphas = alphas_cumprod(config)
    lambdas = np.log(np.sqrt(alphas)) - np.log(np.sqrt(1 - alphas))
    return int((lambdas < least).sum())
