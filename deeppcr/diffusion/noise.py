"""The amount of noise at each training time, as ``alphas_cumprod`` and as ``sigmas``.

A noisy sample is ``x_t = alpha_t x_0 + sigma_t noise``, with
``alpha_t² = (1 - beta_1) .. (1 - beta_t)`` and ``alpha_t² + sigma_t² = 1`` (Ho et al., NeurIPS
2020, section 2); ``alphas_cumprod`` is ``alpha_t²``. Divided by ``alpha_t`` it is
``x_0 + sigma noise`` (Karras et al., NeurIPS 2022); ``sigmas`` are these ``sigma_t / alpha_t``.
diffusers keeps ``alpha_t²`` in float32, where the first ``sigma_t²`` have three or four digits, and
so do we. Derived values are computed in float64.
"""

from collections.abc import Callable

import numpy as np

from deeppcr.diffusion.config import Config

LEAST_ALPHA_CUMPROD = 2**-24  # of diffusers, in place of the zero of rescale_betas_zero_snr


def alphas_cumprod(config: Config) -> np.ndarray:
    """``[T]``, float32: ``alpha_t²`` at every training time."""
    betas = _betas(config)
    if betas.min() < 0 or betas.max() > 1:
        raise ValueError(
            f"the betas are from {betas.min():g} to {betas.max():g}, expected numbers from 0 to 1: "
            "see beta_start, beta_end and trained_betas."
        )
    return _products(_rescaled(betas) if config.get("rescale_betas_zero_snr") else betas)


def alphas_cumprod_at(config: Config, times: np.ndarray) -> np.ndarray:
    """``[L]``, float64: ``alpha_t²`` at some times.

    After the last step, where a time is negative, it is 1, or that of the first training time.
    """
    alphas = alphas_cumprod(config).astype(np.float64)
    last = 1.0 if config.get("set_alpha_to_one", True) else alphas[0]
    return np.where(times < 0, last, alphas[times])


def levels(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(alpha_t, sigma_t)`` for ``alpha_t²``, with ``alpha_t² + sigma_t² = 1``."""
    return np.sqrt(squares), np.sqrt(1 - squares)


def beta_between(squares: np.ndarray, next_squares: np.ndarray) -> np.ndarray:
    """``1 - alpha² / alpha'²``, rounded to float32 as in diffusers.

    The subtraction leaves few digits, and the noise of 1000 steps depends on their rounding.
    """
    return 1 - (squares / next_squares).astype(np.float32).astype(np.float64)


def _betas(config: Config) -> np.ndarray:
    total, first, last = config["num_train_timesteps"], config["beta_start"], config["beta_end"]
    trained = config["trained_betas"]
    if trained is not None:
        if len(trained) != total:
            raise ValueError(
                f"trained_betas has {len(trained)} entries, expected num_train_timesteps={total}."
            )
        return np.asarray(trained, np.float32)
    if config["beta_schedule"] == "linear":
        return _line(first, last, total)
    if config["beta_schedule"] == "scaled_linear":
        return _line(first**0.5, last**0.5, total) ** 2
    if config["beta_schedule"] == "sigmoid":
        sigmoid = 1 / (1 + np.exp(-_line(-6.0, 6.0, total).astype(np.float64)))
        return (sigmoid * (last - first) + first).astype(np.float32)
    alphas = SQUARED_ALPHAS[config["beta_schedule"]](np.arange(total + 1) / total)
    return np.minimum(1 - alphas[1:] / alphas[:-1], 0.999).astype(np.float32)


def _laplace(t: np.ndarray) -> np.ndarray:
    """From a Laplace distribution of log(SNR) (Hang et al., 2024, arXiv 2407.03297).

    As in diffusers, it is ``alpha_t`` that is taken for its square.
    """
    half = 0.5 - t
    log_snr = -0.5 * np.copysign(1, half) * np.log(1 - 2 * np.abs(half) + 1e-6)
    return np.sqrt(1 / (1 + np.exp(-log_snr)))


SQUARED_ALPHAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    # Nichol and Dhariwal, ICML 2021, section 3.2; the time is in [0, 1].
    "squaredcos_cap_v2": lambda t: np.cos((t + 0.008) / 1.008 * np.pi / 2) ** 2,
    "laplace": _laplace,
    "exp": lambda t: np.exp(-12.0 * t),
}


def _line(first: float, last: float, count: int) -> np.ndarray:
    """Equally spaced float32 numbers, with the rounding of `torch.linspace`.

    It rounds the stride first, and adds its multiples to the nearer end.
    """
    ends = np.array([first, last], np.float32)
    stride = float((ends[1] - ends[0]) / np.float32(max(1, count - 1)))
    index = np.arange(count)
    rising = ends[0].item() + stride * index
    falling = ends[1].item() - stride * (count - 1 - index)
    return np.where(index < count // 2, rising, falling).astype(np.float32)


def _products(betas: np.ndarray) -> np.ndarray:
    return np.cumprod(np.float32(1) - betas, dtype=np.float64).astype(np.float32)


def _rescaled(betas: np.ndarray) -> np.ndarray:
    """Betas whose alphas are shifted and scaled, so that the last is 0 (Lin et al., WACV 2024)."""
    alpha = np.sqrt(_products(betas))
    alpha = (alpha - alpha[-1]) * (alpha[0] / (alpha[0] - alpha[-1]))
    squares = alpha**2
    return 1 - np.concatenate([squares[:1], squares[1:] / squares[:-1]])


def training_sigmas(config: Config) -> np.ndarray:
    """``[T]``, float32, rising: sigma at every training time."""
    alphas = alphas_cumprod(config)
    if config.get("rescale_betas_zero_snr"):
        alphas[-1] = LEAST_ALPHA_CUMPROD
    return ((1 - alphas) / alphas) ** 0.5


def alpha_sigma(sigmas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(alpha_t, sigma_t)`` for ``sigma_t / alpha_t``, with ``alpha_t² + sigma_t² = 1``."""
    alpha = 1 / np.sqrt(sigmas**2 + 1)
    return alpha, sigmas * alpha
