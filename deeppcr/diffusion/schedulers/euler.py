"""Solvers of the probability-flow equation in sigma: Euler, Heun, and Adams-Bashforth (LMS).

For ``x = x0 + sigma noise`` it is ``dx / dsigma = d`` with ``d = (x - x0) / sigma``, where the
model sees ``alpha x`` (Karras et al., NeurIPS 2022, algorithm 1).

Euler's method is ``x' = x + (sigma' - sigma) d``. With ancestral noise it goes to
``sigma'² / sigma``, below the next sigma, and adds noise of the standard deviation
``sigma' sqrt(1 - sigma'² / sigma²)``: that is the posterior of DDPM.

Heun's method calls the model twice in a step, which are two steps of the chain. The first is that
of Euler's method, and remembers half of it; the last step, to 0, has the first half only:

    x' = x + (sigma' - sigma) d,      y = x + (sigma' - sigma) / 2 d
    x'' = y + (sigma' - sigma) / 2 d'

The linear multistep method of order 4 (Hairer, Norsett and Wanner, *Solving Ordinary Differential
Equations I*, 1993, section III.5, for variable steps) is

    x' = x + sum_j w_j d_j,    w_j the integral of the Lagrange polynomial of sigma_j to sigma'

A sampler that starts later has the same weights, and zeros for the derivatives before, as in
diffusers.
"""

from collections.abc import Mapping

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import continuous_grid
from deeppcr.diffusion.noise import alpha_sigma
from deeppcr.diffusion.schedulers.multistep import exact_weights, multistep
from deeppcr.diffusion.table import NOISE, X0, Table, Terms, X, tabulate, term

ORDER = 4


def _tabulate(
    config: Config,
    times: np.ndarray,
    sigmas: np.ndarray,
    sigma: np.ndarray,
    update: Mapping[str, Terms],
) -> Table:
    """The table of steps from ``sigma``, which are some of the ``sigmas`` of a sampler.

    As in diffusers, the variance of ``x_0`` is in that of ``x_T`` for leading times only.
    """
    largest = float(sigmas.max())
    is_leading = config["timestep_spacing"] == "leading"
    return tabulate(
        config,
        times,
        np.ones(len(sigma)),
        sigma,
        update,
        scale=alpha_sigma(sigma)[0],
        init_noise_sigma=(largest**2 + 1) ** 0.5 if is_leading else largest,
    )


def euler(config: Config, steps: int) -> Table:
    """The table of Euler's method."""
    times, sigmas = continuous_grid(config, steps)
    sigma, next_sigma = sigmas[:-1], sigmas[1:]
    if config["timestep_type"] == "continuous" and config["prediction_type"] == "v_prediction":
        times = (0.25 * np.log(sigma)).astype(np.float32)
    x = X0 + next_sigma / sigma * (X - X0)
    return _tabulate(config, times, sigmas, sigma, {"x": x})


def euler_ancestral(config: Config, steps: int) -> Table:
    """The table of Euler's method with ancestral noise."""
    times, sigmas = continuous_grid(config, steps)
    sigma, next_sigma = sigmas[:-1], sigmas[1:]
    ratio = next_sigma / sigma
    x = X0 + ratio**2 * (X - X0) + next_sigma * np.sqrt(1 - ratio**2) * NOISE
    return _tabulate(config, times, sigmas, sigma, {"x": x})


def heun(config: Config, steps: int) -> Table:
    """The table of Heun's method."""
    times, sigmas = continuous_grid(config, steps)
    calls = np.arange(2 * steps - 1)
    first = calls % 2 == 0
    sigma = sigmas[(calls + 1) // 2]  # of each call: the first, and the others twice
    step = np.diff(sigmas)[calls // 2]
    derivative = 1 / sigma * (X - X0)
    half = X + step / 2 * derivative
    start = first * half + ~first * term("y")
    x = start + step / 2 * derivative
    return _tabulate(config, times[(calls + 1) // 2], sigmas, sigma, {"x": x, "y": half})


def lms(config: Config, steps: int) -> Table:
    """The table of the linear multistep method."""
    times, sigmas = continuous_grid(config, steps)
    weights = np.zeros((steps, ORDER))
    for step in range(steps):
        powers = np.arange(1, min(step + 1, ORDER) + 1)
        moments = (sigmas[step + 1] - sigmas[step]) ** powers / powers  # integrals of 1, u, u², ..
        nodes = sigmas[step + 1 - powers] - sigmas[step]
        weights[step, : len(nodes)] = exact_weights(nodes, moments)
    update = multistep(X, weights, 1 / sigmas[:-1] * (X - X0))
    return _tabulate(config, times, sigmas, sigmas[:-1], update)
