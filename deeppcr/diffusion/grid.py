"""The times at which a sampler calls its model, and the sigmas between which its steps go."""

import math
from collections.abc import Callable

import numpy as np

from deeppcr.diffusion.config import Config, Field, count, flag, number, one_of
from deeppcr.diffusion.noise import alpha_sigma, alphas_cumprod, beta_fields, training_sigmas
from deeppcr.diffusion.output import PREDICTIONS, THRESHOLD_FIELDS

Pair = tuple[np.ndarray, np.ndarray]


def time_fields(default: str) -> dict[str, Field]:
    """The fields for the spacing of times (Lin et al., WACV 2024, table 2)."""
    names = dict.fromkeys((default, "leading", "linspace", "trailing"))
    return {"timestep_spacing": one_of(*names), "steps_offset": count(0, least=0)}


RAMP_FIELDS = {f"use_{ramp}_sigmas": flag(False) for ramp in ("karras", "exponential", "beta")}
# Those of multistep solvers in log(alpha / sigma): DPM-Solver, DEIS and UniPC.
SOLVER_FIELDS = {
    **beta_fields(),
    **time_fields("linspace"),
    **RAMP_FIELDS,
    **THRESHOLD_FIELDS,
    "prediction_type": one_of(*PREDICTIONS, "flow_prediction"),
    "use_flow_sigmas": flag(False),
    "flow_shift": number(1.0),
    "use_dynamic_shifting": flag(False),
    "time_shift_type": one_of("exponential"),
    "lower_order_final": flag(True),
}


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


def continuous_grid(config: Config, steps: int) -> Pair:
    """``[L]``, float32: times; ``[L + 1]``: sigmas, for samplers that go by ``x_0 + sigma noise``.

    Times are between the training times.
    """
    trained = training_sigmas(config)
    times = spaced_times(config, steps, config["num_train_timesteps"]).astype(np.float32)
    sigmas = np.interp(times, np.arange(len(trained)), trained)
    if config.get("interpolation_type") == "log_linear":
        sigmas = np.exp(np.linspace(np.log(trained[-1]), np.log(trained[0]), steps + 1))
    if ramp := find_ramp(config):
        sigmas = ramp(*_ends(config, sigmas), steps)
        times = _times_of(trained, sigmas).astype(np.float32)
    return times, np.append(sigmas, last_sigma(config))[: steps + 1]


def solver_grid(config: Config, steps: int, cut: bool = False) -> Pair:
    """``[L]``, int32: times; ``[L]``: sigmas, for solvers in log(alpha / sigma).

    Args:
        cut: times of sigmas that lie between training times are cut off, and not rounded. So are
            those of exponential and beta sigmas, as in diffusers.
    """
    total, ramp = config["num_train_timesteps"], find_ramp(config)
    if config["use_flow_sigmas"] and not ramp:
        # By sigmas with equal steps down to 0; rounded as in diffusers.
        even = (1 - np.linspace(1, 1 / total, steps + 1))[:0:-1]
        return flow_grid(config, shifted(even, find_shift(config, "flow_shift")))
    if config["prediction_type"] == "flow_prediction" and not config["use_flow_sigmas"]:
        raise ValueError("prediction_type='flow_prediction' needs use_flow_sigmas=True.")
    trained = training_sigmas(config)
    if ramp:
        sigmas = ramp(*_ends(config, trained[::-1]), steps)
        times = _times_of(trained, sigmas)
        cut = cut or config["use_exponential_sigmas"] or config["use_beta_sigmas"]
        return (times if cut else times.round()).astype(np.int32), sigmas
    # The sample itself counts as one more time, except for trailing times.
    points = steps if config["timestep_spacing"] == "trailing" else steps + 1
    times = spaced_times(config, points, total - _left_out(config))[:steps].round().astype(np.int32)
    if len(times) < steps:
        raise ValueError(
            f"lambda_min_clipped={config['lambda_min_clipped']} with timestep_spacing='trailing' "
            f"leaves {len(times)} of {steps} steps, expected another spacing."
        )
    return times, np.interp(times, np.arange(len(trained)), trained)


def flow_grid(config: Config, sigmas: np.ndarray) -> Pair:
    """The same for the sigmas of flow matching, in float32 as diffusers keeps them.

    Near 1, ``alpha = 1 - sigma`` has few digits there.
    """
    times = (sigmas * config["num_train_timesteps"]).astype(np.int32)
    return times, sigmas.astype(np.float32).astype(np.float64)


def last_sigma(config: Config) -> float:
    """The sigma after the last step."""
    is_least = config.get("final_sigmas_type") == "sigma_min"
    return float(training_sigmas(config)[0]) if is_least else 0.0


def split_sigmas(config: Config, sigmas: np.ndarray) -> Pair:
    """``(alpha, sigma)`` of a grid."""
    return (1 - sigmas, sigmas) if config["use_flow_sigmas"] else alpha_sigma(sigmas)


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
    """The sigmas that were given, as many as there are steps, as diffusers keeps them."""
    sigmas = config.get("sigmas")
    if sigmas is not None and len(sigmas) != steps:
        raise ValueError(f"steps is {steps}, but the schedule has {len(sigmas)} sigmas of its own.")
    return None if sigmas is None else np.asarray(sigmas, np.float32).astype(np.float64)


def _times_of(trained: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """The times of some sigmas, float64, linear in the logarithm of sigma.

    Rounded as in diffusers, in which the largest sigma may have a time just below that of training:
    samplers with integer times cut it off.
    """
    logarithms, known = np.log(np.maximum(sigmas, 1e-10)), np.log(trained)
    # The last that is not above: they need not rise up to LEAST_ALPHA_CUMPROD.
    is_below = known <= logarithms[:, None]
    below = np.where(is_below, np.arange(len(known)), 0).max(axis=1)
    below = np.minimum(below, len(known) - 2)
    width = known[below] - known[below + 1]  # float32
    share = np.clip((known[below] - logarithms) / width, 0, 1)
    return (1 - share) * below + share * (below + 1)


def _ends(config: Config, sigmas: np.ndarray) -> tuple[float, float]:
    """The first and last sigma of a ramp."""
    first, last = config.get("sigma_max"), config.get("sigma_min")
    return (
        float(sigmas[0] if first is None else first),
        float(sigmas[-1] if last is None else last),
    )


def _left_out(config: Config) -> int:
    """How many of the noisiest training times ``lambda_min_clipped`` leaves out."""
    alphas = alphas_cumprod(config)
    lambdas = np.log(np.sqrt(alphas)) - np.log(np.sqrt(1 - alphas))
    return int((lambdas < config.get("lambda_min_clipped", -np.inf)).sum())


Ramp = Callable[[float, float, int], np.ndarray]


def _karras(first: float, last: float, steps: int) -> np.ndarray:
    """Karras et al., NeurIPS 2022, equation 5, with rho = 7."""
    return np.linspace(first ** (1 / 7), last ** (1 / 7), steps) ** 7


def _exponential(first: float, last: float, steps: int) -> np.ndarray:
    """Equal ratios, which are equal steps in log(alpha_t / sigma_t) (Lu et al., NeurIPS 2022)."""
    return np.exp(np.linspace(np.log(first), np.log(last), steps))


def _lu(first: float, last: float, steps: int) -> np.ndarray:
    """The same, from logarithms in float32, as diffusers keeps them."""
    logarithms = np.log(np.array([first, last], np.float32)).astype(np.float64)
    return np.exp(np.linspace(logarithms[0], logarithms[1], steps))


def _beta(first: float, last: float, steps: int, shape: float = 0.6) -> np.ndarray:
    """Quantiles of the distribution Beta(0.6, 0.6) (Lee et al., 2024, arXiv 2407.12173).

    By bisection. It is symmetric. Below 1/2, its integral is the series
    ``x^a sum_n (1-a)_n / n! x^n / (a + n)``.
    """
    shares, n = np.linspace(1, 0, steps), np.arange(64.0)
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
    "use_lu_lambdas": _lu,
}


def find_ramp(config: Config) -> Ramp | None:
    """The curve from the first sigma to the last in a configuration, if any."""
    names = [name for name in RAMPS if config.get(name)]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are True, expected at most one of them.")
    return RAMPS[names[0]] if names else None
