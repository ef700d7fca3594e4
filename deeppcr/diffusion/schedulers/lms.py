"""Linear multistep method for the probability-flow equation, of order 4 (Adams-Bashforth).

For ``x = x0 + sigma noise`` with the derivative ``y = (x - x0) / sigma``,

    x' = x + sum_j w_j y_j,    w_j the integral of the Lagrange polynomial of sigma_j to sigma'

over the last four derivatives (Hairer, Norsett and Wanner, *Solving Ordinary Differential Equations
I*, 1993, section III.5, for variable steps). A sampler that starts later has the same weights, and
zeros for the derivatives before, as in diffusers.
"""

import numpy as np
from numpy.polynomial import Polynomial

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import continuous_grid
from deeppcr.diffusion.noise import RAMP_FIELDS, beta_fields, init_noise_sigma
from deeppcr.diffusion.prediction import PREDICTION_FIELD
from deeppcr.diffusion.schedulers.euler import predicts_from
from deeppcr.diffusion.table import Scheduler, Table, multistep, tabulate
from deeppcr.diffusion.timesteps import time_fields

ORDER = 4


def table(config: Config, steps: int) -> Table:
    """The table of the linear multistep method."""
    times, sigmas = continuous_grid(config, steps)
    here = sigmas[:-1]
    alpha, predicts = predicts_from(config, here)
    weights = np.zeros((steps, ORDER))
    for step in range(steps):
        order = min(step + 1, ORDER)
        nodes = sigmas[step - np.arange(order)] - sigmas[step]
        for j, polynomial in enumerate(lagrange(nodes)):
            weights[step, j] = polynomial.integ()(sigmas[step + 1] - sigmas[step])
    return tabulate(
        times,
        scale=alpha,
        levels=(1.0, here),
        predicts=predicts,
        update=multistep({"x": 1.0}, weights, {"x": 1 / here, "x0": -1 / here}),
        init_noise_sigma=init_noise_sigma(config, sigmas),
    )


def lagrange(nodes: np.ndarray) -> list[Polynomial]:
    """The polynomials that are 1 at one of the nodes and 0 at the others."""
    found = []
    for j, node in enumerate(nodes):
        others = np.delete(nodes, j)
        numerator = Polynomial.fromroots(others) if len(others) else Polynomial([1.0])
        found.append(numerator * (1 / np.prod(node - others)))
    return found


LMS = Scheduler(
    beta_fields() | RAMP_FIELDS | time_fields("linspace") | PREDICTION_FIELD,
    table,
)
