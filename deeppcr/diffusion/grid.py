"""The times at which a sampler calls its model, and the sigmas between which its steps go."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.noise import alpha_sigma, alphas_cumprod, training_sigmas

BEFORE_NOISE = 1e-6  # from 1, where the first sigma of flow matching is set: alpha must not be 0
Ramp = Callable[[float, float, int], np.ndarray]


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


def continuous_grid(config: Config, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """``[L]``, float32: times; ``[L + 1]``: sigmas, for samplers that go by ``x_0 + sigma noise``.

    Times are between the training times.
    """
    trained = training_sigmas(config)
    times = spaced_times(config, steps, config["num_train_timesteps"]).astype(np.float32)
    sigmas = np.interp(times, np.arange(len(trained)), trained)
    if config.get("interpolation_type") == "log_linear":
        sigmas = np.exp(np.linspace(np.log(trained[-1]), np.log(trained[0]), steps + 1))
    if (curve := ramp(config, sigmas, steps)) is not None:
        sigmas, times = curve, _times_of(trained, curve).astype(np.float32)
    is_least = config.get("final_sigmas_type") == "sigma_min"
    return times, np.append(sigmas, trained[0] if is_least else 0.0)[: steps + 1]


def solver_grid(
    config: Config,
    steps: int,
    even: np.ndarray | None = None,
    *,
    cut: bool = False,
    stays: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``[L]``, int32: times; ``[L + 1]`` each: alpha and sigma, for solvers in log(alpha / sigma).

    Args:
        config: its ``final_sigmas_type`` is that after the last step, too.
        steps: L.
        even: the sigmas of flow matching before they are shifted; None: equal steps down to 0.
        cut: times of sigmas that lie between training times are cut off, and not rounded. So are
            those of exponential and beta sigmas, as in diffusers.
        stays: for flow matching and ramps the last step of "sigma_min" goes nowhere, as in
            diffusers.
    """
    total, is_flow = config["num_train_timesteps"], config["use_flow_sigmas"]
    if config["prediction_type"] == "flow_prediction" and not is_flow:
        raise ValueError("prediction_type='flow_prediction' needs use_flow_sigmas=True.")
    trained = training_sigmas(config)
    curve = ramp(config, trained[::-1], steps)
    if curve is not None:
        times = _times_of(trained, curve)
        cut = cut or config["use_exponential_sigmas"] or config["use_beta_sigmas"]
        times = times if cut else times.round()
        sigmas = curve / (curve + 1) if is_flow else curve
    elif is_flow:
        # Rounded as in diffusers.
        even = (1 - np.linspace(1, 1 / total, steps + 1))[:0:-1] if even is None else even
        sigmas = flow_sigmas(config, even, config["flow_shift"])
        if abs(sigmas[0] - 1) < BEFORE_NOISE:
            sigmas[0] -= BEFORE_NOISE
    else:
        # The sample itself counts as one more time, except for trailing times.
        points = steps if config["timestep_spacing"] == "trailing" else steps + 1
        times = spaced_times(config, points, total - _left_out(config))[:steps].round()
        if len(times) < steps:
            raise ValueError(
                f"lambda_min_clipped={config['lambda_min_clipped']} with timestep_spacing="
                f"'trailing' leaves {len(times)} of {steps} steps, expected another spacing."
            )
        sigmas = np.interp(times, np.arange(len(trained)), trained)
    if is_flow:  # in float32, as diffusers keeps them: near 1, ``alpha`` has few digits there
        times, sigmas = sigmas * total, sigmas.astype(np.float32).astype(np.float64)
    last = 0.0
    if config["final_sigmas_type"] == "sigma_min":
        last = sigmas[-1] if stays and (curve is not None or is_flow) else float(trained[0])
    sigmas = np.append(sigmas, last)
    return times.astype(np.int32), *((1 - sigmas, sigmas) if is_flow else alpha_sigma(sigmas))


def flow_sigmas(config: Config, even: np.ndarray, shift: float) -> np.ndarray:
    """``[L]``: those of flow matching, from those that were given, or ``even`` ones.

    They are moved to the noise, by ``mu`` for dynamic shifting, and then stretched, so that the
    last is ``shift_terminal``, if there is one.
    """
    if (custom := config.get("sigmas")) is not None:
        if len(custom) != len(even):
            raise ValueError(
                f"steps is {len(even)}, but the schedule has {len(custom)} sigmas of its own."
            )
        even = np.asarray(custom, np.float32).astype(np.float64)  # as diffusers keeps them
    if config["use_dynamic_shifting"]:
        mu = config["mu"]
        shift = math.exp(mu) if config["time_shift_type"] == "exponential" else mu
    sigmas = shifted(even, shift)
    if end := config.get("shift_terminal"):
        sigmas = 1 - (1 - sigmas) / ((1 - sigmas[-1]) / (1 - end))
    return sigmas


def shifted(sigmas: np.ndarray, shift: float) -> np.ndarray:
    """Sigmas of flow matching, moved to the noise (Esser et al., ICML 2024, equation 23)."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def _times_of(trained: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """The times of some sigmas, float64, linear in the logarithm of sigma.

    Rounded as in diffusers, in which the largest sigma may have a time just below that of training:
    samplers with integer times cut it off.
    """
    logarithms, levels = np.log(np.maximum(sigmas, 1e-10)), np.log(trained)
    # The last that is not above: they need not rise up to LEAST_ALPHA_CUMPROD.
    is_below = levels <= logarithms[:, None]
    below = np.where(is_below, np.arange(len(levels)), 0).max(axis=1)
    below = np.minimum(below, len(levels) - 2)
    width = levels[below] - levels[below + 1]  # float32
    share = np.clip((levels[below] - logarithms) / width, 0, 1)
    return (1 - share) * below + share * (below + 1)


def _left_out(config: Config) -> int:
    """How many of the noisiest training times ``lambda_min_clipped`` leaves out."""
    alphas = alphas_cumprod(config)
    lambdas = np.log(np.sqrt(alphas)) - np.log(np.sqrt(1 - alphas))
    return int((lambdas < config.get("lambda_min_clipped", -np.inf)).sum())


def _karras(first: float, last: float, steps: int) -> np.ndarray:
    """Karras et al., NeurIPS 2022, equation 5, with rho = 7."""
    return np.linspace(first ** (1 / 7), last ** (1 / 7), steps) ** 7


def _exponential(first: float, last: float, steps: int, dtype: type = np.float64) -> np.ndarray:
    """Equal ratios, which are equal steps in log(alpha_t / sigma_t) (Lu et al., NeurIPS 2022)."""
    ends = np.log(np.array([first, last], dtype)).astype(np.float64)
    return np.exp(np.linspace(ends[0], ends[1], steps))


def _beta(first: float, last: float, steps: int) -> np.ndarray:
    """Quantiles of the distribution Beta(0.6, 0.6) (Lee et al., 2024, arXiv 2407.12173).

    By bisection. It is symmetric. Below 1/2, its integral is the series
    ``x^a sum_n (1-a)_n / n! x^n / (a + n)``.
    """
    shape = 0.6
    shares = np.linspace(1, 0, steps)
    n = np.arange(64.0)
    factors = np.cumprod(np.append(1, (n[:-1] + 1 - shape) / n[1:])) / (shape + n)
    half = 0.5**shape * (factors * 0.5**n).sum()
    lower = np.minimum(shares, 1 - shares)
    low, high = np.zeros_like(shares), np.full_like(shares, 0.5)
    for _ in range(60):
        middle = (low + high) / 2
        below = middle**shape * (factors * middle[:, None] ** n).sum(1) / (2 * half) < lower
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return last + (first - last) * np.where(shares < 0.5, low, 1 - low)


RAMPS: dict[str, Ramp] = {
    "use_karras_sigmas": _karras,
    "use_exponential_sigmas": _exponential,
    "use_beta_sigmas": _beta,
    "use_lu_lambdas": partial(_exponential, dtype=np.float32),  # as diffusers keeps them
}


def ramp(config: Config, sigmas: np.ndarray, steps: int) -> np.ndarray | None:
    """``[L]``: the curve of a configuration from the first sigma to the last; None without any.

    The ends are those of ``sigmas``, if the configuration has none.
    """
    names = list(filter(config.get, RAMPS))
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are True, expected at most one of them.")
    if not names:
        return None
    first, last = config.get("sigma_max"), config.get("sigma_min")
    first = float(sigmas[0] if first is None else first)
    last = float(sigmas[-1] if last is None else last)
    return RAMPS[names[0]](first, last, steps)
