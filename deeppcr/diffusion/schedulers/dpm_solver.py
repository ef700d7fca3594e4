"""DPM-Solver++ (Lu et al., 2022, arXiv 2211.01095): variation of constants, with ``x0`` a polynomial in log(alpha / sigma).

With ``h`` the step in log(alpha / sigma), and ``k = h``, or ``2 h`` for the stochastic form (section 3.4, and appendix A),

    x' = sigma'/sigma e^(h-k) x + alpha' (1 - e^-k) x0 + w (h / h_before) (x0 - x0_before) + s noise

where ``w`` is 0 for the first order, and for the second one ``alpha' (1 - e^-k) / 2`` (midpoint) or
``alpha' (1 - (1 - e^-k) / k)`` (heun); ``s`` is 0, or ``sigma' sqrt(1 - e^-k)`` for the stochastic form.
"""

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, off, one_of, share
from deeppcr.diffusion.correction import find_correction
from deeppcr.diffusion.levels import BETAS, signal
from deeppcr.diffusion.prediction import clean
from deeppcr.diffusion.ramps import RAMP_FIELDS, find_ramp
from deeppcr.diffusion.schedulers.scheduler import Scheduler
from deeppcr.diffusion.schedulers.sigmas import (
    last_level,
    level_at,
    time_of,
    training_levels,
    variance_preserving,
)
from deeppcr.diffusion.table import Table, tabulate
from deeppcr.diffusion.times import spaced, time_fields

FEW_STEPS = 15  # below which lower_order_final counts


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of DPM-Solver++."""
    times, levels = _grid(config, steps)
    (alpha, sigma), (alpha_there, sigma_there) = map(variance_preserving, (levels[:-1], levels[1:]))
    shrink = levels[1:] / levels[:-1]
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
        predicts=clean(config["prediction_type"], alpha, sigma),
        a=sigma_there / sigma * shrink**stochastic,
        c=gain + second,
        d=-second,
        s=stochastic * sigma_there * np.sqrt(-np.expm1(-k)),
        correct=find_correction(config),
    )


def _grid(config: Config, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The times of the steps, int32, and the noise levels that they go from and to, one more."""
    trained = training_levels(config)
    ramp = find_ramp(config)
    if ramp:
        levels = ramp(float(trained[-1]), float(trained[0]), steps)
        times = time_of(trained, levels)
        if not config["use_exponential_sigmas"] and config["beta_schedule"] != "squaredcos_cap_v2":
            times = times.round()
        times = times.astype(np.int32)
    else:
        kept = signal(config)
        left_out = int(
            (np.log(np.sqrt(kept)) - np.log(np.sqrt(1 - kept)) < config["lambda_min_clipped"]).sum()
        )
        # The clean sample counts as one more time, except where times trail.
        points = steps if config["timestep_spacing"] == "trailing" else steps + 1
        times = (
            spaced(config, points, config["num_train_timesteps"] - left_out)[:steps]
            .round()
            .astype(np.int32)
        )
        if len(times) < steps:
            raise ValueError(
                f"lambda_min_clipped={config['lambda_min_clipped']} with timestep_spacing='trailing' leaves {len(times)} of "
                f"{steps} steps, expected another spacing."
            )
        levels = level_at(trained, times)
    return times, np.append(levels, last_level(config, trained))


def _is_second(config: Config, steps: int) -> np.ndarray:
    """Which steps may be of the second order: maybe not the last one."""
    second = np.full(steps, config["solver_order"] == 2)
    few = config["lower_order_final"] and steps < FEW_STEPS
    if config["euler_at_final"] or few or config["final_sigmas_type"] == "zero":
        second[-1] = False
    return second


DPM_SOLVER_MULTISTEP = Scheduler(
    BETAS
    | time_fields("linspace")
    | RAMP_FIELDS
    | {
        "solver_order": count(2, most=2),
        "prediction_type": one_of("epsilon", "sample", "v_prediction"),
        "thresholding": flag(False),
        "dynamic_thresholding_ratio": share(0.995),
        "sample_max_value": number(1.0),
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
