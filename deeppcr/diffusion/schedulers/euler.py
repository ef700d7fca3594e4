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

from typing import Any

import numpy as np
from numpy.polynomial import Polynomial

from deeppcr.diffusion.config import Config, number, one_of
from deeppcr.diffusion.grid import RAMP_FIELDS, continuous_grid, time_fields
from deeppcr.diffusion.noise import ZERO_SNR_FIELD, alpha_sigma, beta_fields
from deeppcr.diffusion.output import PREDICTION_FIELD, clip_fields
from deeppcr.diffusion.table import Scheduler, Table, multistep, scaled, tabulate, total

ORDER = 4


def _tabulate(config: Config, times: Any, sigmas: Any, here: Any, update: Any) -> Table:
    """The table of steps from ``here``, which are some of the ``sigmas`` of a sampler.

    As in diffusers, the variance of ``x_0`` is in that of ``x_T`` for leading times only.
    """
    largest = float(sigmas.max())
    is_leading = config["timestep_spacing"] == "leading"
    return tabulate(
        config,
        times,
        scale=alpha_sigma(here)[0],
        levels=(np.ones(len(here)), here),
        update=update,
        init_noise_sigma=(largest**2 + 1) ** 0.5 if is_leading else largest,
    )


def euler(config: Config, steps: int) -> Table:
    """The table of Euler's method."""
    times, sigmas = continuous_grid(config, steps)
    here, there = sigmas[:-1], sigmas[1:]
    if config["timestep_type"] == "continuous" and config["prediction_type"] == "v_prediction":
        times = (0.25 * np.log(here)).astype(np.float32)
    x = {"x": there / here, "x0": 1 - there / here}
    return _tabulate(config, times, sigmas, here, {"x": x})


def euler_ancestral(config: Config, steps: int) -> Table:
    """The table of Euler's method with ancestral noise."""
    times, sigmas = continuous_grid(config, steps)
    here, there = sigmas[:-1], sigmas[1:]
    to, noise = there**2 / here, there * np.sqrt(1 - (there / here) ** 2)
    x = {"x": to / here, "x0": 1 - to / here, "noise": noise}
    return _tabulate(config, times, sigmas, here, {"x": x})


def heun(config: Config, steps: int) -> Table:
    """The table of Heun's method."""
    times, sigmas = continuous_grid(config, steps)
    calls = np.arange(2 * steps - 1)
    first = calls % 2 == 0
    here = sigmas[(calls + 1) // 2]  # of each call: the first, and the others twice
    step = np.diff(sigmas)[calls // 2]
    start = {"x": np.where(first, 1.0, 0.0), "y": np.where(first, 0.0, 1.0)}
    derivative = {"x": 1 / here, "x0": -1 / here}
    update = {
        "x": total(start, scaled(np.where(first, step, step / 2), derivative)),
        "y": total({"x": 1.0}, scaled(step / 2, derivative)),
    }
    return _tabulate(config, times[(calls + 1) // 2], sigmas, here, update)


def lms(config: Config, steps: int) -> Table:
    """The table of the linear multistep method."""
    times, sigmas = continuous_grid(config, steps)
    here, weights = sigmas[:-1], np.zeros((steps, ORDER))
    for step in range(steps):
        nodes = sigmas[step - np.arange(min(step + 1, ORDER))] - sigmas[step]
        for j, polynomial in enumerate(lagrange(nodes)):
            weights[step, j] = polynomial.integ()(sigmas[step + 1] - sigmas[step])
    update = multistep({"x": 1.0}, weights, {"x": 1 / here, "x0": -1 / here})
    return _tabulate(config, times, sigmas, here, update)


def lagrange(nodes: np.ndarray) -> list[Polynomial]:
    """The polynomials that are 1 at one of the nodes and 0 at the others."""
    found = []
    for j, node in enumerate(nodes):
        others = np.delete(nodes, j)
        numerator = Polynomial.fromroots(others) if len(others) else Polynomial([1.0])
        found.append(numerator * (1 / np.prod(node - others)))
    return found


TIMES = time_fields("linspace")
EULER = Scheduler(
    beta_fields()
    | ZERO_SNR_FIELD
    | TIMES
    | RAMP_FIELDS
    | PREDICTION_FIELD
    | {
        "interpolation_type": one_of("linear", "log_linear"),
        "sigma_min": number(None),
        "sigma_max": number(None),
        "timestep_type": one_of("discrete", "continuous"),
        "final_sigmas_type": one_of("zero", "sigma_min"),
    },
    euler,
)
EULER_ANCESTRAL = Scheduler(
    beta_fields() | ZERO_SNR_FIELD | TIMES | {"prediction_type": one_of("epsilon", "v_prediction")},
    euler_ancestral,
)
HEUN = Scheduler(
    beta_fields("exp", start=0.00085, end=0.012)
    | RAMP_FIELDS
    | TIMES
    | PREDICTION_FIELD
    | clip_fields(False),
    heun,
    calls=2,
)
LMS = Scheduler(beta_fields() | RAMP_FIELDS | TIMES | PREDICTION_FIELD, lms)
