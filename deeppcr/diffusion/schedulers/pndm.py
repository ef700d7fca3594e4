"""Pseudo numerical methods (Liu et al., ICLR 2022): DDIM with the output of a higher order method.

From time ``t`` to ``t'``, with the noise ``e`` that an output predicts for the sample ``z``,

    x' = alpha' / alpha z + (sigma' - alpha' / alpha sigma) e

The output is that of a linear multistep method (equation 12): ``(55 m - 59 m_1 + 37 m_2 - 9 m_3) /
24``, and of lower order at first (PLMS). There the first step is taken twice: again from its start,
with the mean of the outputs at its two ends. Or three Runge-Kutta steps come first (equation 13),
of four model calls each, which are four steps of the chain.
"""

import dataclasses
from itertools import pairwise

import numpy as np

from deeppcr.diffusion.config import Config, flag, one_of
from deeppcr.diffusion.grid import integer_times, time_fields
from deeppcr.diffusion.noise import alphas_cumprod_at, beta_fields
from deeppcr.diffusion.table import Scheduler, Table, by_step, scaled, tabulate, total

Row = dict[str, float]

OUTPUTS = ("m", "m1", "m2", "m3")  # of this call, and of those before
# By how many there are: Adams-Bashforth.
WEIGHTS = (
    (1.0,),
    (3 / 2, -1 / 2),
    (23 / 12, -16 / 12, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
RUNGE_KUTTA_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of the model, and the step after it.

    Attributes:
        time: of the model's input.
        begin, end: the times that the step goes from and to.
        output: what is taken for the output, as a linear combination.
        start: the sample that the step goes from: "x", or "start", which is remembered.
        remember: whether later steps use this output.
        stages: the sum of the outputs of a Runge-Kutta step, as it is remembered.
    """

    time: int
    begin: int
    end: int
    output: Row
    start: str = "x"
    remember: bool = True
    stages: Row = dataclasses.field(default_factory=dict)


def table(config: Config, steps: int) -> Table:
    """The table of PNDM."""
    times = integer_times(config, steps)
    stride = config["num_train_timesteps"] // steps
    if config["skip_prk_steps"]:
        calls = _first_twice(times, stride, config["start"])
    elif config["start"]:
        raise ValueError(
            f"start is {config['start']}, but Runge-Kutta steps begin at the first time: expected "
            "0, or skip_prk_steps=True in the configuration."
        )
    elif steps > RUNGE_KUTTA_STEPS:
        calls = _runge_kutta(times, stride // 2)
        times = times[RUNGE_KUTTA_STEPS:]
        calls += [Call(time, time, time - stride, _adams_bashforth(4)) for time in times]
    else:
        raise ValueError(
            f"steps is {steps}, expected at least {RUNGE_KUTTA_STEPS + 1}, or "
            "skip_prk_steps=True in the configuration."
        )
    called = np.array([call.time for call in calls], np.int32)
    squares = alphas_cumprod_at(config, called)
    update = {
        "x": _next(config, calls),
        "start": by_step([{call.start: 1.0} for call in calls]),
        "stages": by_step([call.stages for call in calls]),
    }
    for old, new in pairwise(OUTPUTS):
        update[new] = by_step([{old if call.remember else new: 1.0} for call in calls])
    return tabulate(config, called, levels=(np.sqrt(squares), np.sqrt(1 - squares)), update=update)


def _first_twice(times: np.ndarray, stride: int, start: int) -> list[Call]:
    """The multistep method, which takes its first step twice.

    The second time is twice among those of the calls. A sampler that starts later takes the rest of
    them, as in diffusers, and from its third call on is one time ahead of the noise that is left.
    """
    calls = []
    for index, time in enumerate([*times[:2], *times[1:]]):
        known = max(index - start, 0)
        if known == 1:
            mean = {"m": 0.5, "m1": 0.5}
            call = Call(time, time + stride, time, mean, start="start", remember=False)
        else:
            call = Call(time, time, time - stride, _adams_bashforth(min(max(known, 1), 4)))
        calls.append(call)
    return calls


def _runge_kutta(times: np.ndarray, half: int) -> list[Call]:
    """Three steps of four calls: at the start, twice half a step later, and at the end."""
    calls = []
    for begin, end in pairwise(times[: RUNGE_KUTTA_STEPS + 1]):
        middle = end + half
        more = {"stages": 1.0, "m": 1 / 3}
        calls += [
            Call(begin, begin, begin - half, {"m": 1.0}, stages={"m": 1 / 6}),
            Call(middle, begin, middle, {"m": 1.0}, "start", False, stages=more),
            Call(middle, begin, end, {"m": 1.0}, "start", False, stages=more),
            Call(end, begin, end, {"stages": 1.0, "m": 1 / 6}, "start", False),
        ]
    return calls


def _adams_bashforth(order: int) -> Row:
    return dict(zip(OUTPUTS, WEIGHTS[order - 1], strict=False))


def _next(config: Config, calls: list[Call]) -> dict[str, np.ndarray]:
    """The coefficients of the next ``x``."""
    total_times = config["num_train_timesteps"]
    begins = np.array([call.begin for call in calls])
    if begins.max() >= total_times:
        raise ValueError(
            f"a step begins at time {begins.max()}, expected one below {total_times}: take "
            "another timestep_spacing, or steps_offset=0."
        )
    first = alphas_cumprod_at(config, np.zeros(1, int))[0]
    last = 1.0 if config["set_alpha_to_one"] else float(first)
    here = alphas_cumprod_at(config, begins, last)
    there = alphas_cumprod_at(config, np.array([call.end for call in calls]), last)
    alpha, sigma = np.sqrt(here), np.sqrt(1 - here)
    keep = np.sqrt(there) / alpha
    gain = np.sqrt(1 - there) - keep * sigma
    start = by_step([{call.start: 1.0} for call in calls])
    output = by_step([call.output for call in calls])
    if config["prediction_type"] == "v_prediction":
        noise = total(scaled(alpha, output), scaled(sigma, start))
    else:
        noise = output
    return total(scaled(keep, start), scaled(gain, noise))


PNDM = Scheduler(
    beta_fields()
    | time_fields("leading")
    | {
        "skip_prk_steps": flag(False),
        "set_alpha_to_one": flag(False),
        "prediction_type": one_of("epsilon", "v_prediction"),
    },
    table,
)
