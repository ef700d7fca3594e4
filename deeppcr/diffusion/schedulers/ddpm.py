"""DDPM, DDIM and latent consistency models: ``x'`` from ``x``, the predicted ``x0``, and noise.

With ``alpha`` and ``sigma`` at this time, ``alpha'`` and ``sigma'`` at the next, and
``beta = 1 - alpha² / alpha'²``:

DDPM (Ho et al., NeurIPS 2020, equation 7) takes the posterior given ``x`` and ``x0``,

    x' = alpha' beta / (1 - alpha²) x0 + alpha / alpha' (1 - alpha'²) / (1 - alpha²) x + s noise

where ``s²`` is the variance of the posterior (fixed_small), ``beta`` (fixed_large), or learned:
any, or between these two in the logarithm (learned_range).

DDIM (Song et al., ICLR 2021, equation 12) combines ``x0`` and the noise that the model predicts,

    x' = alpha' x0 + sqrt(1 - alpha'² - s²) (x - alpha x0) / sigma + s noise
    s² = eta² (1 - alpha'²) / (1 - alpha²) beta

where the second ``x0`` is that before any correction.

Latent consistency models (Luo et al., 2023, arXiv 2310.04378) predict ``x0``, and add noise,

    x' = alpha' z + sigma' noise,    z = c_out x0 + c_skip x

with ``x' = z`` in the last step. A few steps suffice, usually four: a parallel method needs about
as many iterations, so there is nothing to gain, and each step forgets all but ``x0``.
"""

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import integer_times
from deeppcr.diffusion.noise import alphas_cumprod_at, beta_between, levels
from deeppcr.diffusion.table import NOISE, X0, Table, X, original_from, tabulate

LEAST_VARIANCE = 1e-20
SIGMA_DATA = 0.5  # of latent consistency models


def ddpm(config: Config, steps: int) -> Table:
    """The table of DDPM."""
    times = integer_times(config, steps)
    squares = alphas_cumprod_at(config, times)
    next_squares = alphas_cumprod_at(config, np.append(times[1:], -1))
    beta = beta_between(squares, next_squares)
    posterior = np.maximum((1 - next_squares) / (1 - squares) * beta, LEAST_VARIANCE)
    kind = config["variance_type"]
    variance, span = posterior, None
    if kind.startswith("fixed_large"):
        # For the logarithm diffusers returns NaN: it takes its square root. The two are one.
        variance = beta
    elif kind == "learned":
        variance, span = np.ones(steps), np.where(times > 0, 1.0, 0.0)
    elif kind == "learned_range":
        span = np.where(times > 0, np.log(beta / posterior) / 2, 0.0)
    x = (
        np.sqrt(squares / next_squares) * (1 - next_squares) / (1 - squares) * X
        + np.sqrt(next_squares) * beta / (1 - squares) * X0
        + np.where(times > 0, np.sqrt(variance), 0.0) * NOISE
    )
    learned = None if span is None else kind
    alpha, sigma = levels(squares)
    return tabulate(config, times, alpha, sigma, {"x": x}, learned=learned, span=span)


def ddim(config: Config, steps: int) -> Table:
    """The table of DDIM."""
    times = integer_times(config, steps)
    squares = alphas_cumprod_at(config, times)
    # As in diffusers, the next time is one stride of "leading" spacing away for every spacing.
    next_squares = alphas_cumprod_at(config, times - config["num_train_timesteps"] // steps)
    alpha, sigma = levels(squares)
    x_0 = original_from(config["prediction_type"], X, alpha, sigma)
    s = config["eta"] * np.sqrt(
        (1 - next_squares) / (1 - squares) * beta_between(squares, next_squares)
    )
    noise = 1 / sigma * (X - alpha * x_0)
    x = np.sqrt(next_squares) * X0 + np.sqrt(1 - next_squares - s**2) * noise + s * NOISE
    return tabulate(config, times, alpha, sigma, {"x": x})


def lcm(config: Config, steps: int) -> Table:
    """The table of latent consistency models."""
    total, original = config["num_train_timesteps"], config["original_inference_steps"]
    if original > total:
        raise ValueError(
            f"original_inference_steps={original}, expected at most num_train_timesteps={total}."
        )
    if steps > original:
        raise ValueError(f"steps is {steps}, expected at most original_inference_steps={original}.")
    # Some of the times of the sampler from which the model was distilled.
    distilled = np.arange(original, 0, -1) * (total // original) - 1
    times = distilled[np.linspace(0, original, steps, endpoint=False).astype(int)].astype(np.int32)
    squares = alphas_cumprod_at(config, times)
    alpha, sigma = levels(squares)
    scaled_times = times * config["timestep_scaling"]
    size = scaled_times**2 + SIGMA_DATA**2
    z = scaled_times / np.sqrt(size) * X0 + SIGMA_DATA**2 / size * X
    x = np.append(alpha[1:], 1.0) * z + np.append(sigma[1:], 0.0) * NOISE
    return tabulate(config, times, alpha, sigma, {"x": x})
