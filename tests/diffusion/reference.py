"""The loop that diffusers' pipelines run, over one of its schedulers."""

import sys
from typing import NamedTuple
from unittest import mock

import diffusers
import numpy as np
import torch

from tests.diffusion.cases import FIRST, MATRIX, NOISE, Case, doubled, model


class Walk(NamedTuple):
    """The run of diffusers: times ``[L]``, the deviation of ``x_T``, and all samples."""

    times: np.ndarray
    init_noise_sigma: float
    samples: np.ndarray


def scheduler_of(case: Case):
    """The scheduler of diffusers."""
    fields = {name: value for name, value in case.config.items() if name != "_class_name"}
    return getattr(diffusers, case.config["_class_name"])(**fields)


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
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(
            0
        )  # else it searches for the first time, and finds the second one if the two are equal
    sigma = float(getattr(scheduler, "init_noise_sigma", 1.0))
    scale = getattr(scheduler, "scale_model_input", lambda x, t: x)
    options = {"eta": case.eta} if "DDIM" in case.config["_class_name"] else {}
    x = sigma * torch.from_numpy(FIRST)
    samples = []
    for t, noise in zip(scheduler.timesteps, torch.from_numpy(NOISE), strict=False):
        with mock.patch.object(
            sys.modules[type(scheduler).__module__],
            "randn_tensor",
            lambda *_, noise=noise, **__: noise,
            create=True,
        ):
            output = output_of(scale(x, t), t.double(), torch, torch.from_numpy(MATRIX))
            x = scheduler.step(output, t, x, **options).prev_sample
        samples.append(x.numpy())
    return Walk(scheduler.timesteps.numpy(), sigma, np.stack(samples))
