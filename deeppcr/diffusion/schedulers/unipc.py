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

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import solver_grid
from deeppcr.diffusion.schedulers.multistep import exact_weights, find_orders
from deeppcr.diffusion.table import X0, Table, Terms, X, by_step, tabulate, term


def unipc(config: Config, steps: int) -> Table:
    """The table of UniPC."""
    predicts_sample, order = config["predict_x0"], config["solver_order"]
    if not predicts_sample and config["final_sigmas_type"] == "zero":
        raise ValueError(
            "predict_x0=False with final_sigmas_type='zero': its last step is unbounded; expected "
            "final_sigmas_type='sigma_min', or predict_x0=True."
        )
    if config["shift_terminal"] is not None and not config["use_flow_sigmas"]:
        raise ValueError("shift_terminal needs use_flow_sigmas=True, expected None.")
    even = np.linspace(1, 1 / config["num_train_timesteps"], steps + 1)[:-1]
    times, alpha, sigma = solver_grid(config, steps, even, stays=True)
    lambdas = np.log(alpha / sigma)
    orders = find_orders(config, steps)

    def go(step: int, start: Terms, ys: list[Terms], end: Terms | None = None) -> Terms:
        """From one sigma to the next, with ``y`` there and at the steps before; or at the end."""
        a, s = alpha[step : step + 2], sigma[step : step + 2]
        h = lambdas[step + 1] - lambdas[step]
        keep, gain, k = (s[1] / s[0], a[1], -h) if predicts_sample else (a[1] / a[0], s[1], h)
        y, *nodes = ys[: orders[step]]
        ratios = (lambdas[step - np.arange(1, orders[step])] - lambdas[step]) / h
        if end is not None:
            ratios = np.append(ratios, 1.0)
            nodes.append(end)
        size, weights = _weights(ratios, k, config["solver_type"])
        pairs = zip(weights / ratios, nodes, strict=True)
        differences = [weight * (node - y) for weight, node in pairs]
        return keep * start - gain * (math.expm1(k) * y + size * sum(differences, Terms()))

    outputs, rows, starts = [], [], []
    before = [term(f"y{i}") for i in range(1, order + 1)]
    for step in range(steps):
        output = X0 if predicts_sample else 1 / sigma[step] * (X - alpha[step] * X0)
        start = X
        if step > config["start"] and step - 1 not in config["disable_corrector"]:
            start = go(step - 1, term("start"), before, output)
        rows.append(go(step, start, [output, *before]))
        starts.append(start)
        outputs.append(output)
    update = {
        "x": by_step(rows),
        "start": by_step(starts),
        "y1": by_step(outputs),
        **{f"y{i}": term(f"y{i - 1}") for i in range(2, order + 1)},
    }
    corrected = config if predicts_sample else {**config, "thresholding": False}
    return tabulate(corrected, times, alpha[:-1], sigma[:-1], update)


def _weights(ratios: np.ndarray, k: float, solver_type: str) -> tuple[float, np.ndarray]:
    """``B``, and the weights ``w`` for which the formula is exact for polynomials."""
    size = k if solver_type == "bh1" else math.expm1(k)
    if len(ratios) == 1:
        return size, np.array([0.5])
    moments = []
    phi = math.expm1(k) / k - 1  # k phi_2(k), k² phi_3(k), ..
    for i in range(1, len(ratios) + 1):
        moments.append(phi * math.factorial(i) / size)
        phi = phi / k - 1 / math.factorial(i + 1)
    return size, exact_weights(ratios, np.array(moments))
