"""Pseudo numerical methods (Liu et al., ICLR 2022): DDIM with the output of a higher order method.

From time ``t`` to ``t'``, with the noise ``e`` that an output predicts for the sample ``z``,

    x' = alpha' / alpha z + (sigma' - alpha' / alpha sigma) e

The output is that of a linear multistep method (equation 12): ``(55 m - 59 m_1 + 37 m_2 - 9 m_3) /
24``, and of lower order at first (PLMS). There the first step is taken twice: again from its start,
with the mean of the outputs at its two ends. Or three Runge-Kutta steps come first (equation 13),
of four model calls each, which are four steps of the chain.
"""

import operator
from itertools import pairwise

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import integer_times
from deeppcr.diffusion.noise import alphas_cumprod_at, levels
from deeppcr.diffusion.table import OUTPUT, Table, Terms, X, tabulate, term

OUTPUTS = (OUTPUT, *map(term, ("m1", "m2", "m3")))  # of this call, and of those before
START, STAGES = term("start"), term("stages")
# By the number of outputs: Adams-Bashforth.
WEIGHTS = np.array(
    [
        [1.0, 0.0, 0.0, 0.0],
        [3 / 2, -1 / 2, 0.0, 0.0],
        [23 / 12, -16 / 12, 5 / 12, 0.0],
        [55 / 24, -59 / 24, 37 / 24, -9 / 24],
    ]
)
MEAN = [1 / 2, 1 / 2, 0.0, 0.0]
RUNGE_KUTTA_STEPS = 3


def pndm(config: Config, steps: int) -> Table:
    """The table of PNDM."""
    times, stride = integer_times(config, steps), config["num_train_timesteps"] // steps
    if config["skip_prk_steps"]:
        return _first_twice(config, times, stride)
    if config["start"]:
        raise ValueError(
            f"start is {config['start']}, but Runge-Kutta steps begin at the first time: expected "
            "0, or skip_prk_steps=True in the configuration."
        )
    if steps <= RUNGE_KUTTA_STEPS:
        raise ValueError(
            f"steps is {steps}, expected at least {RUNGE_KUTTA_STEPS + 1}, or "
            "skip_prk_steps=True in the configuration."
        )
    return _runge_kutta(config, times, stride)


def _first_twice(config: Config, times: np.ndarray, stride: int) -> Table:
    """The multistep method, which takes its first step twice.

    The second time is twice among those of the calls. A sampler that starts later takes the rest of
    them, as in diffusers, and from its third call on is one time ahead of the noise that is left.
    """
    called = np.array([*times[:2], *times[1:]])
    before = np.arange(len(called)) - config["start"]  # outputs before this one
    again = before == 1
    weights = WEIGHTS[np.clip(before, 1, 4) - 1]
    weights[again] = MEAN
    ends = np.where(again, called, called - stride)
    begins = called + stride * again
    return _tabulate(config, called, begins, ends, again, _multistep(weights), Terms())


def _runge_kutta(config: Config, times: np.ndarray, stride: int) -> Table:
    """Three steps of four calls: at the start, twice half a step later, and at the end."""
    begin, end = times[:RUNGE_KUTTA_STEPS], times[1 : RUNGE_KUTTA_STEPS + 1]
    middle, rest = end + stride // 2, times[RUNGE_KUTTA_STEPS:]
    called = np.stack([begin, middle, middle, end], axis=1)
    ends = np.stack([begin - stride // 2, middle, end, end], axis=1)
    # Which call of its step it is; 4: of the multistep method, which takes the others.
    call = np.append(np.tile(np.arange(4), RUNGE_KUTTA_STEPS), np.full(len(rest), 4))
    inner = (call == 1) | (call == 2)
    output = (call < 3) * OUTPUT + (call == 3) * (STAGES + 1 / 6 * OUTPUT)
    return _tabulate(
        config,
        np.append(called, rest),
        np.append(np.repeat(begin, 4), rest),
        np.append(ends, rest - stride),
        inner | (call == 3),
        output + (call == 4) * _multistep(WEIGHTS[[3]]),
        (call == 0) * (1 / 6 * OUTPUT) + inner * (STAGES + 1 / 3 * OUTPUT),
    )


def _multistep(weights: np.ndarray) -> Terms:
    """The combination of the outputs with ``weights``, ``[L, 4]``."""
    return sum(map(operator.mul, weights.T, OUTPUTS), Terms())


def _tabulate(
    config: Config,
    called: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    again: np.ndarray,
    output: Terms,
    stages: Terms,
) -> Table:
    """The table of model calls, with the step after each.

    Args:
        config: that of the scheduler.
        called: ``[L]``, the times of the model's input.
        begins: ``[L]``, the times that the steps go from.
        ends: ``[L]``, the times that they go to.
        again: ``[L]``, whether a step goes from the start of the one before; the output is not
            remembered then.
        output: what is taken for the output.
        stages: the sum of the outputs of a Runge-Kutta step that is remembered.
    """
    trained = config["num_train_timesteps"]
    if begins.max() >= trained:
        raise ValueError(
            f"a step begins at time {begins.max()}, expected one below {trained}: take "
            "another timestep_spacing, or steps_offset=0."
        )
    start = ~again * X + again * START
    squares = alphas_cumprod_at(config, begins)
    next_squares = alphas_cumprod_at(config, ends)
    alpha, sigma = levels(squares)
    keep = np.sqrt(next_squares / squares)
    is_v = config["prediction_type"] == "v_prediction"
    noise = alpha * output + sigma * start if is_v else output
    update = {
        "x": keep * start + (np.sqrt(1 - next_squares) - keep * sigma) * noise,
        "start": start,
        "stages": stages,
    }
    for old, new in pairwise(OUTPUTS):
        (name,) = new
        update[name] = ~again * old + again * new
    alpha, sigma = levels(alphas_cumprod_at(config, called))
    return tabulate(config, called, alpha, sigma, update)
