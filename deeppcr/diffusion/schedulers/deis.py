"""DEIS, multistep, in log(rho) (Zhang and Chen, ICLR 2023, section 3.2).

With ``rho = sigma / alpha`` and the noise ``e`` that the model predicts,

    x' / alpha' = x / alpha + sum_j w_j e_j,    w_j = integral of l_j(log r) dr from rho to rho'

where ``l_j`` is the Lagrange polynomial in ``log(rho)`` over this step and those before it.
"""

import numpy as np
from numpy.polynomial import Polynomial

from deeppcr.diffusion.config import Config, count, flag, one_of
from deeppcr.diffusion.grid import FLOW_FIELDS, flow_grid, solver_grid, split_sigmas
from deeppcr.diffusion.noise import RAMP_FIELDS, beta_fields, find_ramp, training_sigmas
from deeppcr.diffusion.prediction import (
    FLOW_PREDICTION_FIELD,
    THRESHOLD_FIELDS,
    find_correction,
    original_from,
)
from deeppcr.diffusion.schedulers.dpm_solver import FEW_STEPS
from deeppcr.diffusion.schedulers.lms import lagrange
from deeppcr.diffusion.table import Scheduler, Table, multistep, steps_known, tabulate
from deeppcr.diffusion.timesteps import time_fields


def table(config: Config, steps: int) -> Table:
    """The table of DEIS."""
    times, sigmas = _grid(config, steps)
    (alpha, sigma), (alpha_there, sigma_there) = (
        split_sigmas(config, each) for each in (sigmas[:-1], sigmas[1:])
    )
    rho = np.append(sigma / alpha, sigma_there[-1] / alpha_there[-1])
    weights = np.zeros((steps, 3))
    for step, known in enumerate(steps_known(config, steps)):
        order = min(known, config["solver_order"])
        if config["lower_order_final"] and steps < FEW_STEPS:
            order = min(order, steps - step)
        nodes = np.log(rho[step - np.arange(order)] / rho[step])
        for j, polynomial in enumerate(lagrange(nodes)):
            weights[step, j] = rho[step] * _integral(polynomial, np.log(rho[step + 1] / rho[step]))
    return tabulate(
        times,
        levels=(alpha, sigma),
        predicts=original_from(config["prediction_type"], alpha, sigma),
        update=multistep(
            {"x": alpha_there / alpha},
            alpha_there[:, None] * weights,
            {"x": 1 / sigma, "x0": -alpha / sigma},
        ),
        correct=find_correction(config),
    )


def _integral(polynomial: Polynomial, end: float) -> float:
    """Of the polynomial times ``e^u``, from 0 to ``end``, by parts."""
    total, sign, term = 0.0, 1.0, polynomial
    for _ in range(len(polynomial)):
        total += sign * float(term(end) * np.exp(end) - term(0.0))
        sign, term = -sign, term.deriv()
    return total


def _grid(config: Config, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """``[L]``: the times of the steps; ``[L + 1]``: the sigmas between which they go."""
    if config["prediction_type"] == "flow_prediction" and not config["use_flow_sigmas"]:
        raise ValueError("prediction_type='flow_prediction' needs use_flow_sigmas=True.")
    ramp = find_ramp(config)
    is_flow = config["use_flow_sigmas"] and not ramp
    times, sigmas = (flow_grid if is_flow else solver_grid)(config, steps)
    # As in diffusers, the last step goes nowhere for those.
    last = sigmas[-1] if is_flow or ramp else training_sigmas(config)[0]
    return times, np.append(sigmas, last)


DEIS = Scheduler(
    beta_fields()
    | time_fields("linspace")
    | RAMP_FIELDS
    | FLOW_PREDICTION_FIELD
    | THRESHOLD_FIELDS
    | FLOW_FIELDS
    | {
        "solver_order": count(2, most=3),
        "algorithm_type": one_of(
            "deis", aliases=dict.fromkeys(("dpmsolver", "dpmsolver++"), "deis")
        ),
        "solver_type": one_of(
            "logrho", aliases=dict.fromkeys(("midpoint", "heun", "bh1", "bh2"), "logrho")
        ),
        "lower_order_final": flag(True),
    },
    table,
    options=("mu",),
)
