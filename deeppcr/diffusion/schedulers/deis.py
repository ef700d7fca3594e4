"""DEIS, multistep, in log(rho) (Zhang and Chen, ICLR 2023, section 3.2).

With ``rho = sigma / alpha`` and the noise ``e`` that the model predicts,

    x' / alpha' = x / alpha + sum_j w_j e_j,    w_j = integral of l_j(log r) dr from rho to rho'

where ``l_j`` is the Lagrange polynomial in ``log(rho)`` over this step and those before it.
"""

import numpy as np
from numpy.polynomial import Polynomial

from deeppcr.diffusion.config import Config, count, one_of
from deeppcr.diffusion.grid import SOLVER_FIELDS, find_ramp, solver_grid, split_sigmas
from deeppcr.diffusion.noise import training_sigmas
from deeppcr.diffusion.schedulers.dpm_solver import FEW_STEPS
from deeppcr.diffusion.schedulers.euler import lagrange
from deeppcr.diffusion.table import Scheduler, Table, multistep, steps_known, tabulate


def table(config: Config, steps: int) -> Table:
    """The table of DEIS."""
    times, sigmas = solver_grid(config, steps)
    # As in diffusers, the last step goes nowhere for those.
    goes_nowhere = config["use_flow_sigmas"] or find_ramp(config)
    sigmas = np.append(sigmas, sigmas[-1] if goes_nowhere else training_sigmas(config)[0])
    alpha, sigma = split_sigmas(config, sigmas)
    rho = sigma / alpha
    (alpha, alpha_there), sigma = (alpha[:-1], alpha[1:]), sigma[:-1]
    weights = np.zeros((steps, 3))
    for step, known in enumerate(steps_known(config, steps)):
        order = min(known, config["solver_order"])
        if config["lower_order_final"] and steps < FEW_STEPS:
            order = min(order, steps - step)
        nodes = np.log(rho[step - np.arange(order)] / rho[step])
        for j, polynomial in enumerate(lagrange(nodes)):
            weights[step, j] = rho[step] * _integral(polynomial, np.log(rho[step + 1] / rho[step]))
    noise = {"x": 1 / sigma, "x0": -alpha / sigma}
    update = multistep({"x": alpha_there / alpha}, alpha_there[:, None] * weights, noise)
    return tabulate(config, times, levels=(alpha, sigma), update=update)


def _integral(polynomial: Polynomial, end: float) -> float:
    """Of the polynomial times ``e^u``, from 0 to ``end``, by parts."""
    total, sign, term = 0.0, 1.0, polynomial
    for _ in range(len(polynomial)):
        total += sign * float(term(end) * np.exp(end) - term(0.0))
        sign, term = -sign, term.deriv()
    return total


OTHER_KINDS, OTHER_SOLVERS = ("dpmsolver", "dpmsolver++"), ("midpoint", "heun", "bh1", "bh2")
DEIS = Scheduler(
    SOLVER_FIELDS
    | {
        "solver_order": count(2, most=3),
        "algorithm_type": one_of("deis", aliases=dict.fromkeys(OTHER_KINDS, "deis")),
        "solver_type": one_of("logrho", aliases=dict.fromkeys(OTHER_SOLVERS, "logrho")),
    },
    table,
    options=("mu",),
)
