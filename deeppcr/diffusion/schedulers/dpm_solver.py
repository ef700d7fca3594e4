"""DPM-Solver, multistep (Lu et al., NeurIPS 2022; and ++, 2022, arXiv 2211.01095), and DEIS.

It is exact for a polynomial ``y`` in ``lambda = log(alpha / sigma)``: ``x0`` (++), or the noise
that the model predicts. With ``h`` the step in lambda, and ``k = h``, or ``2 h`` for the stochastic
forms (++, section 3.4, and appendix A),

    ++     x' = sigma'/sigma e^(h-k) x - alpha' (f0 D0 + f1 D1 + f2 D2) + s noise,    c = -k
    else   x' = alpha'/alpha x - k/h sigma' (f0 D0 + f1 D1 + f2 D2) + s noise,        c = h

``D0 = y``, and ``D1`` and ``D2`` are divided differences of ``y`` at this step and those before, of
the second order or the third, in units of ``h``. Their factors are

    f0 = e^c - 1,    f1 = f0 / c - 1,    f2 = f1 / c - 1/2

and for the second order, "midpoint" takes half of ``f0`` for ``f1``. ``s`` is 0, or the deviation
that keeps the variance.

DEIS in log(rho) (Zhang and Chen, ICLR 2023, section 3.2) integrates the polynomial through the
noise at this step and those before it, where ``log(rho) = -lambda``. That is the second form with
``2 f2`` in place of ``f2``.
"""

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import solver_grid
from deeppcr.diffusion.schedulers.multistep import find_orders, multistep
from deeppcr.diffusion.table import NOISE, X0, Table, X, tabulate

LOWER_ORDER_BELOW = 15  # lower_order_final counts below this
LEAST_STEP = 1e-12  # in lambda: the last step may end where it begins, but for rounding


def dpm_solver(config: Config, steps: int) -> Table:
    """The table of DPM-Solver."""
    kind = config["algorithm_type"]
    if not kind.endswith("++") and config["final_sigmas_type"] == "zero":
        raise ValueError(
            f"algorithm_type={kind!r} with final_sigmas_type='zero': its last step is unbounded; "
            f"expected final_sigmas_type='sigma_min', or algorithm_type='{kind}++'."
        )
    if kind == "sde-dpmsolver" and config["solver_order"] == 3:
        raise ValueError(
            "algorithm_type='sde-dpmsolver' has no third order, expected solver_order=2, or "
            "algorithm_type='sde-dpmsolver++'."
        )
    cut = config["beta_schedule"] == "squaredcos_cap_v2"
    orders = find_orders(config, steps, LOWER_ORDER_BELOW)
    if config["euler_at_final"] or config["final_sigmas_type"] == "zero":
        orders[-1] = 1
    return _tabulate(config, *solver_grid(config, steps, cut=cut), orders)


def deis(config: Config, steps: int) -> Table:
    """The table of DEIS."""
    least = {**config, "final_sigmas_type": "sigma_min"}
    orders = find_orders(config, steps, LOWER_ORDER_BELOW)
    return _tabulate(least, *solver_grid(least, steps, stays=True), orders)


def _tabulate(
    config: Config, times: np.ndarray, alpha: np.ndarray, sigma: np.ndarray, orders: np.ndarray
) -> Table:
    """The table of steps of these orders, between these levels."""
    kind = config["algorithm_type"]
    is_sde = kind.startswith("sde")
    alpha, next_alpha = alpha[:-1], alpha[1:]
    sigma, next_sigma = sigma[:-1], sigma[1:]
    h = np.log(next_alpha / alpha * sigma / next_sigma)
    h[-1] = LEAST_STEP if abs(h[-1]) < LEAST_STEP else h[-1]
    k = 2 * h if is_sde else h
    if kind.endswith("++"):
        keep = next_sigma / sigma * (np.exp(-h) if is_sde else 1.0)
        y, c, gain, variance = X0, -k, next_alpha, -np.expm1(-2 * h)
    else:
        keep = next_alpha / alpha
        y = 1 / sigma * (X - alpha * X0)
        c, gain, variance = h, k / h * next_sigma, np.expm1(2 * h)
    f0 = np.expm1(c)
    f1 = f0 / c - 1
    # For the stochastic form, diffusers adds the half of f2, which the paper subtracts.
    f2 = f1 / c - (-0.5 if kind == "sde-dpmsolver++" else 0.5)
    f2 = 2 * f2 if kind == "deis" else f2
    weights = _weights(orders, h, (f0, f1, f2), config["solver_type"])
    start = keep * X + (next_sigma * np.sqrt(variance) if is_sde else 0.0) * NOISE
    update = multistep(start, -gain[:, None] * weights, y)
    return tabulate(config, times, alpha, sigma, update)


def _weights(
    orders: np.ndarray, h: np.ndarray, factors: tuple[np.ndarray, ...], solver_type: str
) -> np.ndarray:
    """``[L, 3]``: the weights of ``y`` at this step and at the two before it."""
    orders, h, f0, f1, f2 = (column[:, None] for column in (orders, h, *factors))
    # Of the first steps these are others, which their orders leave out.
    before, earlier = np.roll(h, 1), np.roll(h, 2)
    # Differences of neighbours, in units of h: at this step, and at the one before.
    near, far = h / before * [1.0, -1.0, 0.0], h / earlier * [0.0, 1.0, -1.0]
    bend = (near - far) / (before + earlier)
    second = (f0 / 2 if solver_type == "midpoint" else f1) * near
    third = f1 * (near + before * bend) + f2 * h * bend
    higher = np.where(orders == 2, second, third)
    return f0 * [1.0, 0.0, 0.0] + np.where(orders == 1, 0.0, higher)
