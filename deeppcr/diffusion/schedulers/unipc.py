"""UniPC, multistep (Zhao et al., NeurIPS 2023, section 3): a predictor, and a corrector.

It is exact for a polynomial ``y`` in ``lambda = log(alpha / sigma)``: ``x0``, or the noise that the
model predicts. With ``h`` the step in lambda, ``k = -h`` for the sample or ``h`` for the noise, and
``B = k`` (bh1) or ``e^k - 1`` (bh2),

    x' = keep x - gain ((e^k - 1) y + B sum_j w_j (y_j - y) / r_j),    r_j = (lambda_j - lambda) / h

where ``keep`` and ``gain`` are ``sigma'/sigma`` and ``alpha'``, or ``alpha'/alpha`` and ``sigma'``.
The sum has the steps before this one (predictor), and also the next one (corrector), for which ``r
= 1``. So the corrector of a step needs the model's output at its end: a step of the chain is the
corrector of the step before, and then the predictor. It remembers the corrected sample.
"""

import math

import numpy as np

from deeppcr.diffusion.config import Config, count, flag, number, numbers, one_of
from deeppcr.diffusion.grid import (
    SOLVER_FIELDS,
    Pair,
    find_ramp,
    find_shift,
    flow_grid,
    given_sigmas,
    last_sigma,
    shifted,
    solver_grid,
    split_sigmas,
    stretched,
)
from deeppcr.diffusion.noise import ZERO_SNR_FIELD
from deeppcr.diffusion.table import Scheduler, Table, by_step, scaled, steps_known, tabulate, total

Row = dict[str, float]

BEFORE_NOISE = 1e-6  # from 1, where the first sigma of flow matching is set: alpha must not be 0


def table(config: Config, steps: int) -> Table:
    """The table of UniPC."""
    if not config["predict_x0"] and config["final_sigmas_type"] == "zero":
        raise ValueError(
            "predict_x0=False with final_sigmas_type='zero': its last step is unbounded; expected "
            "final_sigmas_type='sigma_min', or predict_x0=True."
        )
    times, sigmas = _grid(config, steps)
    alpha, sigma = split_sigmas(config, sigmas)
    lambdas = np.log(alpha / sigma)
    order = config["solver_order"]
    known = steps_known(config, steps)
    orders = np.minimum(known, order)
    if config["lower_order_final"]:
        orders = np.minimum(orders, steps - np.arange(steps))
    outputs: list[Row] = [
        {"x0": 1.0} if config["predict_x0"] else {"x": 1 / s, "x0": -a / s}
        for a, s in zip(alpha[:-1], sigma[:-1], strict=True)
    ]

    def go(step: int, order: int, start: Row, known: list[Row], end: Row | None = None) -> Row:
        """From one sigma to the next, with ``y`` there and at the steps before; or at the end."""
        a, s = (each[[step, step + 1]] for each in (alpha, sigma))
        h = lambdas[step + 1] - lambdas[step]
        keep, gain, k = (s[1] / s[0], a[1], -h) if config["predict_x0"] else (a[1] / a[0], s[1], h)
        y, *others = known[:order]
        ratios = (lambdas[step - np.arange(1, order)] - lambdas[step]) / h
        differences = [
            scaled(1 / ratio, total(other, scaled(-1.0, y)))
            for ratio, other in zip(ratios, others, strict=True)
        ]
        if end is not None:
            ratios = np.append(ratios, 1.0)
            differences.append(total(end, scaled(-1.0, y)))
        size, weights = _weights(ratios, k, config["solver_type"])
        return total(
            scaled(keep, start),
            scaled(-gain * math.expm1(k), y),
            *(
                scaled(-gain * size * weight, each)
                for weight, each in zip(weights, differences, strict=True)
            ),
        )

    rows, starts = [], []
    for step in range(steps):
        output, before = outputs[step], [{f"y{i}": 1.0} for i in range(1, order + 1)]
        start: Row = {"x": 1.0}
        if known[step] > 1 and step - 1 not in config["disable_corrector"]:
            start = go(step - 1, int(orders[step - 1]), {"start": 1.0}, before, output)
        rows.append(go(step, int(orders[step]), start, [output, *before]))
        starts.append(start)
    update = {"x": by_step(rows), "start": by_step(starts), "y1": by_step(outputs)}
    update |= {f"y{i}": {f"y{i - 1}": np.ones(steps)} for i in range(2, order + 1)}
    corrected = config if config["predict_x0"] else {**config, "thresholding": False}
    return tabulate(corrected, times, levels=(alpha[:-1], sigma[:-1]), update=update)


def _weights(ratios: np.ndarray, k: float, solver_type: str) -> tuple[float, np.ndarray]:
    """``B``, and the weights ``w`` for which the formula is exact for polynomials."""
    size = k if solver_type == "bh1" else math.expm1(k)
    if len(ratios) == 0:
        return 0.0, ratios
    if len(ratios) == 1:
        return size, np.array([0.5])
    moments, phi = [], math.expm1(k) / k - 1  # k phi_2(k), k² phi_3(k), ..
    for i in range(1, len(ratios) + 1):
        moments.append(phi * math.factorial(i) / size)
        phi = phi / k - 1 / math.factorial(i + 1)
    powers = np.vander(ratios, increasing=True).T
    return size, np.linalg.solve(powers, np.array(moments))


def _grid(config: Config, steps: int) -> Pair:
    """``[L]``: the times of the steps; ``[L + 1]``: the sigmas between which they go."""
    is_flow, ramp = config["use_flow_sigmas"], find_ramp(config)
    if not is_flow and config["shift_terminal"] is not None:
        raise ValueError("shift_terminal needs use_flow_sigmas=True, expected None.")
    if is_flow and not ramp:
        even = given_sigmas(config, steps)
        if even is None:
            even = np.linspace(1, 1 / config["num_train_timesteps"], steps + 1)[:-1]
        sigmas = stretched(config, shifted(even, find_shift(config, "flow_shift")))
        if abs(sigmas[0] - 1) < BEFORE_NOISE:
            sigmas[0] -= BEFORE_NOISE
        times, sigmas = flow_grid(config, sigmas)
    else:
        times, sigmas = solver_grid(config, steps)
        if is_flow:
            times, sigmas = flow_grid(config, sigmas / (sigmas + 1))
    is_last = config["final_sigmas_type"] == "sigma_min" and (ramp or is_flow)
    return times, np.append(sigmas, sigmas[-1] if is_last else last_sigma(config))


OTHER_SOLVERS = ("midpoint", "heun", "logrho")
UNIPC = Scheduler(
    SOLVER_FIELDS
    | ZERO_SNR_FIELD
    | {
        "solver_order": count(2),
        "predict_x0": flag(True),
        "solver_type": one_of("bh2", "bh1", aliases=dict.fromkeys(OTHER_SOLVERS, "bh2")),
        "disable_corrector": numbers(()),
        "solver_p": one_of(None),
        "final_sigmas_type": one_of("zero", "sigma_min"),
        "sigma_min": number(None),
        "sigma_max": number(None),
        "shift_terminal": number(None),
    },
    table,
    options=("mu", "sigmas"),
)
