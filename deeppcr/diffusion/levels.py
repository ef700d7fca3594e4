"""Noise levels: how much of the clean sample is left at each training time.

A noisy sample is ``x_t = alpha_t x_0 + sigma_t noise``, with ``alpha_t² = (1 - beta_1) .. (1 - beta_t)`` and
``alpha_t² + sigma_t² = 1`` (Ho et al., NeurIPS 2020, section 2). Divided by alpha_t it is ``x_0 + level noise`` (Karras et al.,
NeurIPS 2022). diffusers keeps alpha_t² in float32, where the first ``sigma_t²`` have three or four digits, and so do we; what
follows from it is computed in float64.
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, numbers, one_of

BETAS = {
    "num_train_timesteps": count(1000),
    "beta_start": number(0.0001),
    "beta_end": number(0.02),
    "beta_schedule": one_of("linear", "scaled_linear", "squaredcos_cap_v2"),
    "trained_betas": numbers(),
    "rescale_betas_zero_snr": flag(False),
}


def signal(config: Config) -> np.ndarray:
    """``[T]``, float32: alpha_t² at every training time."""
    betas = _betas(config)
    return _product(_without_signal_at_last(betas) if config["rescale_betas_zero_snr"] else betas)


def _betas(config: Config) -> np.ndarray:
    total, first, last = config["num_train_timesteps"], config["beta_start"], config["beta_end"]
    if config["trained_betas"] is not None:
        if len(config["trained_betas"]) != total:
            raise ValueError(
                f"trained_betas has {len(config['trained_betas'])} entries, expected num_train_timesteps={total}."
            )
        return np.asarray(config["trained_betas"], np.float32)
    if config["beta_schedule"] == "linear":
        return _line(first, last, total)
    if config["beta_schedule"] == "scaled_linear":
        return _line(first**0.5, last**0.5, total) ** 2
    # squaredcos_cap_v2: Nichol and Dhariwal, ICML 2021, section 3.2.
    left = np.cos((np.arange(total + 1) / total + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1 - left[1:] / left[:-1], 0.999).astype(np.float32)


def _line(first: float, last: float, count: int) -> np.ndarray:
    """A line of float32 numbers, as `torch.linspace` rounds it: from the nearer end, by a stride that is rounded first."""
    ends = np.array([first, last], np.float32)
    stride = float((ends[1] - ends[0]) / np.float32(max(1, count - 1)))
    index = np.arange(count)
    line = np.where(
        index < count // 2,
        ends[0].item() + stride * index,
        ends[1].item() - stride * (count - 1 - index),
    )
    return line.astype(np.float32)


def _product(betas: np.ndarray) -> np.ndarray:
    return np.cumprod(np.float32(1) - betas, dtype=np.float64).astype(np.float32)


def _without_signal_at_last(betas: np.ndarray) -> np.ndarray:
    """Betas whose alphas are shifted and stretched so that the last one is nought (Lin et al., WACV 2024, algorithm 1)."""
    alpha = np.sqrt(_product(betas))
    alpha = (alpha - alpha[-1]) * (alpha[0] / (alpha[0] - alpha[-1]))
    left = alpha**2
    return 1 - np.concatenate([left[:1], left[1:] / left[:-1]])
