"""`Schedule.noise_tolerance`: the criterion of ParaDiGMS, and as few iterations as its loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Newton
from deeppcr.diffusion import Schedule, sample
from experiments.field.window import sliding_picard
from experiments.models.chains import Model, states

STEPS, WINDOW = 100, 5
DDIM = {"_class_name": "DDIMScheduler", "clip_sample": False}
DPM_SOLVER = {"_class_name": "DPMSolverMultistepScheduler"}
# Samplers, and those whose noise tells what theirs would be.
NOISY = {
    "ddim": (Schedule.from_config(DDIM), Schedule.from_config(DDIM, eta=1.0)),
    "of samples": (
        Schedule.from_config(DDIM | {"prediction_type": "sample"}),
        Schedule.from_config({"_class_name": "DDPMScheduler"}),
    ),
    "euler": (
        Schedule.from_config({"_class_name": "EulerDiscreteScheduler"}),
        Schedule.from_config({"_class_name": "EulerAncestralDiscreteScheduler"}),
    ),
    "dpm solver": (
        Schedule.from_config(DPM_SOLVER),
        Schedule.from_config(DPM_SOLVER | {"algorithm_type": "sde-dpmsolver++"}),
    ),
}


@pytest.mark.parametrize("name", NOISY)
def test_it_is_in_proportion_to_the_noise_of_the_next_step(name):
    schedule, noisy = NOISY[name]
    noise = noisy.table(STEPS).update["x"]["noise"]
    found = schedule.noise_tolerance(STEPS, 0.1)
    np.testing.assert_allclose(found[:-2], 0.1 * noise[1:-1], rtol=1e-5)
    np.testing.assert_array_equal(found[-2:], found[-3])


def test_flow_matching_and_two_calls_at_one_level():
    config = {"_class_name": "FlowMatchEulerDiscreteScheduler"}
    # x = (1 - sigma) x_0 + sigma noise, with sigma = 1, 0.75, 0.5, 0.25.
    even = Schedule.from_config(config, sigmas=(1.0, 0.75, 0.5, 0.25))
    last = 0.25 * np.sqrt(1 - (0.25 / 0.75 / 1) ** 2)
    expected = [0.5 * np.sqrt(1 - (1 / 3) ** 2), last, last, last]
    np.testing.assert_allclose(even.noise_tolerance(4, 1.0), expected, rtol=1e-6)
    heun = Schedule.from_config({"_class_name": "HeunDiscreteScheduler"}).noise_tolerance(10, 1.0)
    assert len(heun) == 19
    assert (heun > 0).all()
    np.testing.assert_array_equal(heun[0:-3:2], heun[1:-3:2])


def test_a_window_takes_no_more_iterations_than_the_loop_of_paradigms():
    """At the same criterion, entry by entry."""
    schedule = NOISY["ddim"][0]
    centres = jax.random.normal(jax.random.key(1), (4, 6))
    table = schedule.table(STEPS)
    alphas = jnp.asarray(1 / table.predict["x"] ** 2)

    def model(x, t):
        """The noise in a sample of a few blobs."""
        a = alphas[(999 - t) // 10]
        difference = x[None] - jnp.sqrt(a) * centres
        weights = jax.nn.softmax(-jnp.square(difference).sum(-1) / (2 - 1.9 * a))
        return jnp.sqrt(1 - a) / (1 - 0.95 * a) * weights @ difference

    x = jax.random.normal(jax.random.key(0), (6,))
    step = table.step(model)
    chain = Model(lambda x, at: step({"x": x}, at)["x"], table.inputs(x.dtype), x)
    expected = states(chain)
    for ratio in (0.3, 0.01):
        atol = schedule.noise_tolerance(STEPS, ratio)
        loop, iterations = sliding_picard(chain, WINDOW, atol, lambda u: np.abs(u).max(axis=-1))
        method = Newton("identity", atol=atol, window=WINDOW)
        found = sample(model, schedule, x, steps=STEPS, method=method, batch_ndim=0)
        assert found.converged
        assert STEPS // WINDOW < found.stats.iterations <= iterations
        error, limit = (np.abs(each - expected).max() for each in (found.trajectory, loop))
        assert error < 1.2 * limit


def test_a_ratio_that_is_none_is_named():
    with pytest.raises(ValueError, match="ratio is 0, expected a number > 0"):
        NOISY["ddim"][0].noise_tolerance(STEPS, 0)
