"""DPM-Solver, multistep (Lu et al., NeurIPS 2022; and ++, 2022, arXiv 2211.01095).

It is exact for a polynomial ``y`` in ``lambda = log(alpha / sigma)``: ``x0`` (++), or the noise
that the model predicts. With ``h`` the step in lambda, and ``k = h``, or ``2 h`` for the stochastic
forms (++, section 3.4, and appendix A),

    ++     x' = sigma'/sigma e^(h-k) x + alpha' ((1 - e^-k) D0 + f1 D1 + f2 D2) + s noise
    else   x' = alpha'/alpha x - k/h sigma' ((e^h - 1) D0 + g1 D1 + g2 D2) + s noise

``D0 = y``, and ``D1`` and ``D2`` are divided differences of ``y`` at this step and those before, of
the second order or the third, in units of ``h``. Their factors are

    f1 = 1 - (1 - e^-k) / k      f2 = (1 - e^-k - k) / k² + 1/2
    g1 = (e^h - 1) / h - 1       g2 = (e^h - 1 - h) / h² - 1/2

and for the second order, "midpoint" takes half of the factor of ``D0`` for that of ``D1``. ``s`` is
0, or the deviation that keeps the variance.
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, one_of
from deeppcr.diffusion.grid import FLOW_FIELDS, flow_grid, solver_grid, split_sigmas
from deeppcr.diffusion.noise import (
    RAMP_FIELDS,
    ZERO_SNR_FIELD,
    beta_fields,
    find_ramp,
    last_sigma,
    training_sigmas,
)
from deeppcr.diffusion.prediction import (
    FLOW_PREDICTION_FIELD,
    THRESHOLD_FIELDS,
    find_correction,
    original_from,
)
from deeppcr.diffusion.table import Scheduler, Table, multistep, steps_known, tabulate
from deeppcr.diffusion.timesteps import time_fields

FEW_STEPS = 15  # lower_order_final counts below this
LEAST_STEP = 1e-12  # in lambda: the last step may end where it begins, but for rounding


def table(config: Config, steps: int) -> Table:
    """The table of DPM-Solver."""
    kind = config["algorithm_type"]
    is_sde, predicts_sample = kind.startswith("sde"), kind.endswith("++")
    if not predicts_sample and config["final_sigmas_type"] == "zero":
        raise ValueError(
            f"algorithm_type={kind!r} with final_sigmas_type='zero': its last step is unbounded; "
            f"expected final_sigmas_type='sigma_min', or algorithm_type='{kind}++'."
        )
    if kind == "sde-dpmsolver" and config["solver_order"] == 3:
        raise ValueError(
            "algorithm_type='sde-dpmsolver' has no third order, expected solver_order=2, or "
            "algorithm_type='sde-dpmsolver++'."
        )
    times, sigmas = _grid(config, steps)
    (alpha, sigma), (alpha_there, sigma_there) = (
        split_sigmas(config, each) for each in (sigmas[:-1], sigmas[1:])
    )
    h = np.log(alpha_there / alpha * sigma / sigma_there)
    h[-1] = LEAST_STEP if abs(h[-1]) < LEAST_STEP else h[-1]
    k = 2 * h if is_sde else h
    if predicts_sample:
        keep = sigma_there / sigma * (np.exp(-h) if is_sde else 1.0)
        # For the stochastic form, diffusers subtracts the half of f2, which the paper adds.
        half = -0.5 if is_sde else 0.5
        factors = (
            -np.expm1(-k),
            1 + np.expm1(-k) / k,
            (-np.expm1(-k) - k) / k**2 + half,
        )
        gain, noise = alpha_there, np.sqrt(-np.expm1(-2 * h))
        remembered = {"x0": np.ones(steps)}
    else:
        keep = alpha_there / alpha
        factors = (np.expm1(h), (np.expm1(h) - h) / h, (np.expm1(h) - h) / h**2 - 0.5)
        gain, noise = -(k / h) * sigma_there, np.sqrt(np.expm1(2 * h))
        remembered = {"x": 1 / sigma, "x0": -alpha / sigma}
    weights = _weights(_orders(config, steps), h, factors, config["solver_type"])
    return tabulate(
        times,
        levels=(alpha, sigma),
        predicts=original_from(config["prediction_type"], alpha, sigma),
        update=multistep(
            {"x": keep, "noise": sigma_there * noise if is_sde else 0.0},
            gain[:, None] * weights,
            remembered,
        ),
        correct=find_correction(config),
    )


def _grid(config: Config, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """``[L]``: the times of the steps; ``[L + 1]``: the sigmas between which they go."""
    if config["prediction_type"] == "flow_prediction" and not config["use_flow_sigmas"]:
        raise ValueError("prediction_type='flow_prediction' needs use_flow_sigmas=True.")
    if config["use_flow_sigmas"] and not find_ramp(config):
        times, sigmas = flow_grid(config, steps)
    else:
        is_cosine = config["beta_schedule"] == "squaredcos_cap_v2"
        times, sigmas = solver_grid(config, steps, cut=is_cosine)
    return times, np.append(sigmas, last_sigma(config, training_sigmas(config)))


def _orders(config: Config, steps: int) -> np.ndarray:
    """``[L]``: the orders of the steps: lower ones at the start, and perhaps at the end."""
    orders = np.minimum(steps_known(config, steps), config["solver_order"])
    few = config["lower_order_final"] and steps < FEW_STEPS
    if few:
        orders[-2:-1] = np.minimum(orders[-2:-1], 2)
    if config["euler_at_final"] or few or config["final_sigmas_type"] == "zero":
        orders[-1] = 1
    return orders


def _weights(
    orders: np.ndarray, h: np.ndarray, factors: tuple[np.ndarray, ...], solver_type: str
) -> np.ndarray:
    """``[L, 3]``: the weights of ``y`` at this step and at the two before it."""
    weights = np.zeros((len(h), 3))
    for step, order in enumerate(orders):
        f0, f1, f2 = (each[step] for each in factors)
        weights[step, 0] = f0
        if order == 1:
            continue
        # Differences of neighbours, in units of h: at this step, and at the one before.
        near = h[step] / h[step - 1] * np.array([1.0, -1.0, 0.0])
        if order == 2:
            weights[step] += (f0 / 2 if solver_type == "midpoint" else f1) * near
            continue
        far = h[step] / h[step - 2] * np.array([0.0, 1.0, -1.0])
        width = h[step - 1] + h[step - 2]
        slope = near + h[step - 1] / width * (near - far)
        weights[step] += f1 * slope + f2 * h[step] / width * (near - far)
    return weights


DPM_SOLVER_MULTISTEP = Scheduler(
    beta_fields()
    | ZERO_SNR_FIELD
    | time_fields("linspace")
    | RAMP_FIELDS
    | FLOW_PREDICTION_FIELD
    | THRESHOLD_FIELDS
    | FLOW_FIELDS
    | {
        "solver_order": count(2, most=3),
        "algorithm_type": one_of(
            "dpmsolver++",
            "dpmsolver",
            "sde-dpmsolver",
            "sde-dpmsolver++",
            aliases={"deis": "dpmsolver++"},
        ),
        "solver_type": one_of(
            "midpoint",
            "heun",
            aliases=dict.fromkeys(("logrho", "bh1", "bh2"), "midpoint"),
        ),
        "lower_order_final": flag(True),
        "euler_at_final": flag(False),
        "use_lu_lambdas": flag(False),
        "final_sigmas_type": one_of("zero", "sigma_min"),
        "lambda_min_clipped": number(-float("inf")),
        "variance_type": one_of(None, "learned", "learned_range"),
    },
    table,
    options=("mu",),
)
