"""Every step of every scheduler against diffusers itself, where it is installed."""

import inspect

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import diffusers

from deeppcr.diffusion import Schedule
from deeppcr.diffusion.schedulers import FIELDS_OF_DIFFUSERS, INSTEAD, SCHEDULERS
from tests.diffusion import ours, reference
from tests.diffusion.cases import CASES, OWN_CASES, PARALLEL

# What diffusers says of its own use of torch and numpy.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.algorithm_types dpmsolver and:FutureWarning"),
]


def starts_later(case):
    """Whether it makes sense from an image: Runge-Kutta steps begin at the first time."""
    is_pndm = "PNDM" in case.config["_class_name"]
    return case.steps > 1 and not (is_pndm and not case.config.get("skip_prk_steps"))


# What all schedulers have has nothing to do with where a sampler starts.
ALL = CASES | PARALLEL
ALL |= {
    f"{name}, from an image": case._replace(start=max(case.steps // 3, 1))
    for name, case in OWN_CASES.items()
    if starts_later(case)
}


@pytest.mark.parametrize("name", ALL)
def test_each_step_is_that_of_diffusers(name):
    case = ALL[name]
    expected = reference.walk(case)
    schedule = Schedule.from_config(reference.scheduler_of(case), **case.options)
    assert schedule == case.schedule()
    table = schedule.table(case.steps, case.start)
    np.testing.assert_allclose(table.time, expected.times, rtol=1e-6)
    np.testing.assert_allclose(
        schedule.init_noise_sigma(case.steps), expected.init_noise_sigma, rtol=1e-6
    )
    samples = ours.walk(case)
    scale = np.abs(expected.samples).max(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(samples / scale, expected.samples / scale, rtol=0, atol=2e-5)


def parameters(name):
    """Of a scheduler's class in diffusers."""
    names = set(inspect.signature(getattr(diffusers, name).__init__).parameters)
    return names - {"self", "args", "kwargs"}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_fields_are_those_of_diffusers(name):
    config = getattr(diffusers, name)().config
    fields = SCHEDULERS[name].fields
    assert set(fields) == parameters(name)
    for field in fields:
        assert fields[field].read(config[field]) == fields[field].default, field


def test_fields_of_other_schedulers_are_known():
    others = [name for name in dir(diffusers) if name.endswith("Scheduler")]
    missing = {field for name in others for field in parameters(name)} - FIELDS_OF_DIFFUSERS
    assert missing <= {"dtype"}
    assert set(INSTEAD) <= set(others)
    assert not set(INSTEAD) & set(SCHEDULERS)
