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
from typing import NamedTuple

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import integer_times
from deeppcr.diffusion.noise import alphas_cumprod_at, levels
from deeppcr.diffusion.table import OUTPUT, Table, Terms, X, by_step, tabulate, term

OUTPUTS = (OUTPUT, *map(term, ("m1", "m2", "m3")))  # of this call, and of those before
START, STAGES = term("start"), term("stages")
# By how many there are: Adams-Bashforth.
WEIGHTS = (
    (1.0,),
    (3 / 2, -1 / 2),
    (23 / 12, -16 / 12, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
RUNGE_KUTTA_STEPS = 3


class ModelCall(NamedTuple):
    """A call of the model, and the step after it.

    Attributes:
        time: of the model's input.
        begin: the time that the step goes from.
        end: the time that it goes to.
        output: what is taken for the output.
        start: the sample that the step goes from, which is remembered.
        remember: whether later steps use this output.
        stages: the sum of the outputs of a Runge-Kutta step, as it is remembered.
    """

    time: int
    begin: int
    end: int
    output: Terms
    start: Terms = X
    remember: bool = True
    stages: Terms = Terms()


def pndm(config: Config, steps: int) -> Table:
    """The table of PNDM."""
    times, trained = integer_times(config, steps), config["num_train_timesteps"]
    stride = trained // steps
    if config["skip_prk_steps"]:
        calls = _first_twice(times, stride, config["start"])
    elif config["start"]:
        raise ValueError(
            f"start is {config['start']}, but Runge-Kutta steps begin at the first time: expected "
            "0, or skip_prk_steps=True in the configuration."
        )
    elif steps > RUNGE_KUTTA_STEPS:
        calls = _runge_kutta(times, stride)
    else:
        raise ValueError(
            f"steps is {steps}, expected at least {RUNGE_KUTTA_STEPS + 1}, or "
            "skip_prk_steps=True in the configuration."
        )
    called, begins, ends = np.array([call[:3] for call in calls], np.int32).T
    if begins.max() >= trained:
        raise ValueError(
            f"a step begins at time {begins.max()}, expected one below {trained}: take "
            "another timestep_spacing, or steps_offset=0."
        )
    output = by_step([call.output for call in calls])
    start = by_step([call.start for call in calls])
    squares = alphas_cumprod_at(config, begins)
    next_squares = alphas_cumprod_at(config, ends)
    alpha, sigma = levels(squares)
    keep = np.sqrt(next_squares / squares)
    is_v = config["prediction_type"] == "v_prediction"
    noise = alpha * output + sigma * start if is_v else output
    update = {
        "x": keep * start + (np.sqrt(1 - next_squares) - keep * sigma) * noise,
        "start": start,
        "stages": by_step([call.stages for call in calls]),
    }
    for old, new in pairwise(OUTPUTS):
        (name,) = new
        update[name] = by_step([old if call.remember else new for call in calls])
    alpha, sigma = levels(alphas_cumprod_at(config, called))
    return tabulate(config, called, alpha, sigma, update)


def _first_twice(times: np.ndarray, stride: int, start: int) -> list[ModelCall]:
    """The multistep method, which takes its first step twice.

    The second time is twice among those of the calls. A sampler that starts later takes the rest of
    them, as in diffusers, and from its third call on is one time ahead of the noise that is left.
    """
    calls = []
    for index, time in enumerate([*times[:2], *times[1:]]):
        count = max(index - start, 0)  # outputs before this one
        if count == 1:
            mean = 0.5 * OUTPUT + 0.5 * OUTPUTS[1]
            calls.append(ModelCall(time, time + stride, time, mean, START, remember=False))
        else:
            output = _adams_bashforth(min(max(count, 1), 4))
            calls.append(ModelCall(time, time, time - stride, output))
    return calls


def _runge_kutta(times: np.ndarray, stride: int) -> list[ModelCall]:
    """Three steps of four calls: at the start, twice half a step later, and at the end."""
    calls = []
    for begin, end in pairwise(times[: RUNGE_KUTTA_STEPS + 1]):
        middle = end + stride // 2
        more = STAGES + 1 / 3 * OUTPUT
        calls += [
            ModelCall(begin, begin, begin - stride // 2, OUTPUT, stages=1 / 6 * OUTPUT),
            ModelCall(middle, begin, middle, OUTPUT, START, False, more),
            ModelCall(middle, begin, end, OUTPUT, START, False, more),
            ModelCall(end, begin, end, STAGES + 1 / 6 * OUTPUT, START, False),
        ]
    rest = times[RUNGE_KUTTA_STEPS:]
    return calls + [ModelCall(time, time, time - stride, _adams_bashforth(4)) for time in rest]


def _adams_bashforth(order: int) -> Terms:
    return sum(map(operator.mul, WEIGHTS[order - 1], OUTPUTS), Terms())
