"""The loop that diffusers' pipelines run, over one of its schedulers."""

import sys
from typing import NamedTuple
from unittest import mock

import diffusers
import numpy as np
import torch

from tests.diffusion.cases import FIRST, IMAGE, MASK, MATRIX, NOISE, Case, doubled, model


class Walk(NamedTuple):
    """The run of diffusers.

    Attributes:
        times: ``[L]``.
        init_noise_sigma: the deviation of ``x_T``.
        samples: ``[L, ...]``, after each step.
    """

    times: np.ndarray
    init_noise_sigma: float
    samples: np.ndarray


def scheduler_of(case: Case):
    """The scheduler of diffusers."""
    fields = {name: value for name, value in case.config.items() if name != "_class_name"}
    return getattr(diffusers, case.config["_class_name"])(**fields)


def add_noise(scheduler, image, noise, time):
    """A noisy image: schedulers for flow matching call it another name."""
    if hasattr(scheduler, "scale_noise"):
        return scheduler.scale_noise(image, time, noise)
    return scheduler.add_noise(image, noise, time)


def walk(case: Case) -> Walk:
    """All steps, in float64 where diffusers keeps it, with `cases.NOISE` for what it would draw.

    A wide case is in float64 from the rounded sigmas on.
    """
    scheduler = scheduler_of(case)
    output_of = doubled(model) if case.is_learned else model
    if "sigmas" in case.options:
        scheduler.set_timesteps(sigmas=np.array(case.options["sigmas"]), **case.given)
    else:
        scheduler.set_timesteps(case.steps, **case.given)
    if case.is_wide:
        scheduler.sigmas = scheduler.sigmas.double()
    begin = case.start * scheduler.order
    if hasattr(scheduler, "set_begin_index"):
        # Else it searches for the first time, and finds the second one if the two are equal.
        scheduler.set_begin_index(begin)
    times = scheduler.timesteps[begin:]
    sigma = float(getattr(scheduler, "init_noise_sigma", 1.0))
    scale = getattr(scheduler, "scale_model_input", lambda x, t: x)
    options = {name: value for name, value in case.options.items() if name == "eta"}
    image, first, mask = (torch.from_numpy(each) for each in (IMAGE, FIRST, MASK))
    x = add_noise(scheduler, image, first, times[:1]) if case.start else sigma * first
    samples = []
    for index, (t, noise) in enumerate(zip(times, torch.from_numpy(NOISE), strict=False)):
        with mock.patch.object(
            sys.modules[type(scheduler).__module__],
            "randn_tensor",
            lambda *_, noise=noise, **__: noise,
            create=True,
        ):
            output = output_of(scale(x, t), t.double(), torch, torch.from_numpy(MATRIX))
            x = scheduler.step(output, t, x, **options).prev_sample
        if case.start:  # as in its pipelines for inpainting
            rest = times[index + 1 : index + 2]
            known = add_noise(scheduler, image, first, rest) if len(rest) else image
            x = (1 - mask) * known + mask * x
        samples.append(x.numpy())
    return Walk(times.numpy(), sigma, np.stack(samples))
