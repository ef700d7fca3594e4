"""DEIS, multistep, in log(rho) (Zhang and Chen, ICLR 2023, section 3.2).

With ``rho = sigma / alpha`` and the noise ``e`` that the model predicts,

    x' / alpha' = x / alpha + sum_j w_j e_j,    w_j = integral of l_j(log r) dr from rho to rho'

where ``l_j`` is the Lagrange polynomial in ``log(rho)`` over this step and those before it.
"""

import numpy as np
from numpy.polynomial import Polynomial

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import solver_grid
from deeppcr.diffusion.schedulers.dpm_solver import FEW_STEPS, steps_known
from deeppcr.diffusion.schedulers.euler import lagrange
from deeppcr.diffusion.table import Table, tabulate
from deeppcr.diffusion.terms import X0, X, multistep


def deis(config: Config, steps: int) -> Table:
    """The table of DEIS."""
    least = {**config, "final_sigmas_type": "sigma_min"}
    times, alpha, sigma = solver_grid(least, steps, stays=True)
    rho = sigma / alpha
    alpha, alpha_there = alpha[:-1], alpha[1:]
    sigma = sigma[:-1]
    weights = np.zeros((steps, 3))
    for step, known in enumerate(steps_known(config, steps)):
        order = min(known, config["solver_order"])
        if config["lower_order_final"] and steps < FEW_STEPS:
            order = min(order, steps - step)
        nodes = np.log(rho[step - np.arange(order)] / rho[step])
        for j, polynomial in enumerate(lagrange(nodes)):
            weights[step, j] = rho[step] * _integral(polynomial, np.log(rho[step + 1] / rho[step]))
    noise = 1 / sigma * (X - alpha * X0)
    update = multistep(alpha_there / alpha * X, alpha_there[:, None] * weights, noise)
    return tabulate(config, times, alpha, sigma, update)


def _integral(polynomial: Polynomial, end: float) -> float:
    """Of the polynomial times ``e^u``, from 0 to ``end``, by parts."""
    total, sign, term = 0.0, 1.0, polynomial
    for _ in range(len(polynomial)):
        total += sign * float(term(end) * np.exp(end) - term(0.0))
        sign, term = -sign, term.deriv()
    return total
