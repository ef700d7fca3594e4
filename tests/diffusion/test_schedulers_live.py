"""Every step of every scheduler against diffusers itself, where it is installed."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

from deeppcr.diffusion import Schedule
from tests.diffusion import ours, reference
from tests.diffusion.cases import CASES

# What diffusers says of its own use of torch and numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.mark.parametrize("name", CASES)
def test_each_step_is_that_of_diffusers(name):
    case = CASES[name]
    expected = reference.walk(case)
    schedule = Schedule.from_config(reference.scheduler_of(case), eta=case.eta)
    assert schedule == Schedule.from_config(case.config, eta=case.eta)
    table = schedule.table(case.steps)
    np.testing.assert_allclose(table.time, expected.times, rtol=1e-6)
    np.testing.assert_allclose(
        schedule.init_noise_sigma(case.steps), expected.init_noise_sigma, rtol=1e-6
    )
    samples = ours.walk(case)
    scale = np.abs(expected.samples).max(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(samples / scale, expected.samples / scale, rtol=0, atol=2e-5)
