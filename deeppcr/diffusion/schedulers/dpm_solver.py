"""DPM-Solver++ (Lu et al., 2022, arXiv 2211.01095), exact for polynomial ``x0``.

The polynomial is in log(alpha / sigma). With ``h`` the step in it, and ``k = h``, or ``2 h`` for
the stochastic form (section 3.4, and appendix A),

    x' = sigma'/sigma e^(h-k) x + alpha' (1 - e^-k) x0 + w (h / h_before) (x0 - x0_before) + s noise

where ``w`` is 0 for the first order, and for the second ``alpha' (1 - e^-k) / 2`` (midpoint) or
``alpha' (1 - (1 - e^-k) / k)`` (heun); ``s`` is 0, or ``sigma' sqrt(1 - e^-k)`` for the stochastic
form.
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, off, one_of
from deeppcr.diffusion.noise import (
    BETA_FIELDS,
    RAMP_FIELDS,
    alpha_sigma,
    alphas_cumprod,
    find_ramp,
    last_sigma,
    sigmas_at,
    times_of,
    training_sigmas,
)
from deeppcr.diffusion.prediction import (
    PREDICTION_FIELD,
    THRESHOLD_FIELDS,
    find_correction,
    pred_original_sample,
)
from deeppcr.diffusion.table import Scheduler, Table, tabulate
from deeppcr.diffusion.timesteps import spaced_times, time_fields

FEW_STEPS = 15  # lower_order_final counts below this


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of DPM-Solver++."""
    times, sigmas = _grid(config, steps)
    (alpha, sigma), (alpha_there, sigma_there) = map(alpha_sigma, (sigmas[:-1], sigmas[1:]))
    shrink = sigmas[1:] / sigmas[:-1]
    h = -np.log(shrink)
    k, stochastic = (2 * h, 1.0) if config["algorithm_type"] == "sde-dpmsolver++" else (h, 0.0)
    gain = alpha_there * -np.expm1(-k)
    w = (
        gain / 2
        if config["solver_type"] == "midpoint"
        else alpha_there + alpha_there * np.expm1(-k) / k
    )
    before = np.append(np.inf, h[:-1])  # so that the first step is of the first order
    second = np.where(_is_second(config, steps), w * h / before, 0.0)
    return tabulate(
        times,
        predicts=pred_original_sample(config["prediction_type"], alpha, sigma),
        a=sigma_there / sigma * shrink**stochastic,
        c=gain + second,
        d=-second,
        s=stochastic * sigma_there * np.sqrt(-np.expm1(-k)),
        correct=find_correction(config),
    )


def _grid(config: Config, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """``[L]``, int32: the times of the steps; ``[L + 1]``: the sigmas between which they go."""
    trained = training_sigmas(config)
    ramp = find_ramp(config)
    if ramp:
        sigmas = ramp(float(trained[-1]), float(trained[0]), steps)
        times = times_of(trained, sigmas)
        if not config["use_exponential_sigmas"] and config["beta_schedule"] != "squaredcos_cap_v2":
            times = times.round()
        times = times.astype(np.int32)
    else:
        alphas = alphas_cumprod(config)
        lambdas = np.log(np.sqrt(alphas)) - np.log(np.sqrt(1 - alphas))
        left_out = int((lambdas < config["lambda_min_clipped"]).sum())
        # The sample itself counts as one more time, except for trailing times.
        points = steps if config["timestep_spacing"] == "trailing" else steps + 1
        times = spaced_times(config, points, config["num_train_timesteps"] - left_out)[:steps]
        times = times.round().astype(np.int32)
        if len(times) < steps:
            raise ValueError(
                f"lambda_min_clipped={config['lambda_min_clipped']} with "
                f"timestep_spacing='trailing' leaves {len(times)} of {steps} "
                "steps, expected another spacing."
            )
        sigmas = sigmas_at(trained, times)
    return times, np.append(sigmas, last_sigma(config, trained))


def _is_second(config: Config, steps: int) -> np.ndarray:
    """``[L]``: which steps may be of the second order; the last may be an exception."""
    second = np.full(steps, config["solver_order"] == 2)
    few = config["lower_order_final"] and steps < FEW_STEPS
    if config["euler_at_final"] or few or config["final_sigmas_type"] == "zero":
        second[-1] = False
    return second


DPM_SOLVER_MULTISTEP = Scheduler(
    BETA_FIELDS
    | time_fields("linspace")
    | RAMP_FIELDS
    | PREDICTION_FIELD
    | THRESHOLD_FIELDS
    | {
        "solver_order": count(2, most=2),
        "algorithm_type": one_of("dpmsolver++", "sde-dpmsolver++"),
        "solver_type": one_of("midpoint", "heun"),
        "lower_order_final": flag(True),
        "euler_at_final": flag(False),
        "use_lu_lambdas": flag(False),
        "use_flow_sigmas": off(),
        "flow_shift": number(1.0),
        "final_sigmas_type": one_of("zero", "sigma_min"),
        "lambda_min_clipped": number(-float("inf")),
        "variance_type": one_of(None),
        "use_dynamic_shifting": off(),
        "time_shift_type": one_of("exponential"),
    },
    table,
)
