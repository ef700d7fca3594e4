"""`deeppcr.diffusion.Gaussian`: exact for normal data, and for any model the same samples."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Chain, Newton, solve
from deeppcr.diffusion import Gaussian, Inpaint, Schedule, sample

STEPS, STD = 20, 0.7
ALPHA = np.sqrt(np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)))
BETAS = {"beta_start": 1e-4, "beta_end": 0.02, "beta_schedule": "linear"}
MEAN = np.array([[0.5, -1.0, 2.0]])
NOISE = jax.random.normal(jax.random.key(4), (2, 3))
KEY = jax.random.key(1)


def best(x, t):
    """The noise in samples of normal data, predicted as well as it can be."""
    alpha = jnp.asarray(ALPHA)[t]
    variance = 1 - alpha**2
    slope = alpha * STD**2 / (alpha**2 * STD**2 + variance)
    x_0 = MEAN + slope * (x - alpha * MEAN)
    return (x - alpha * x_0) / jnp.sqrt(variance)


CONFIGS = [
    {"_class_name": "DDPMScheduler", "clip_sample": False},
    {"_class_name": "DPMSolverMultistepScheduler"},
    {"_class_name": "UniPCMultistepScheduler"},
    {"_class_name": "HeunDiscreteScheduler", "timestep_spacing": "leading"},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["_class_name"])
def test_exact_for_normal_data(config):
    """So the first iterate is the solution, whatever a solver remembers."""
    schedule = Schedule.from_config(BETAS | config)

    @jax.jit
    def run(noise):
        def of(method):
            x_T = schedule.init_noise_sigma(STEPS) * noise
            return sample(
                lambda x, t: best(x, t.astype(int)),
                schedule,
                x_T,
                steps=STEPS,
                key=KEY,
                method=method,
            ).value

        once = partial(Newton, max_iterations=1, on_failure="return")
        return of("sequential"), of(once(Gaussian(STD))), of(once(Gaussian(2 * STD)))

    expected, found, other = run(NOISE)
    np.testing.assert_allclose(found, expected, atol=1e-4)  # the grid has errors of 32 bits
    assert np.abs(other - expected).max() > 1e-2


def test_a_correction_a_learned_variance_and_a_known_part():
    """The blocks leave them out; samples and gradients do not."""
    schedule = Schedule.from_config(
        {"_class_name": "DDPMScheduler", "variance_type": "learned_range", "clip_sample": True}
    )
    inpaint = Inpaint(jnp.ones((2, 3)), jnp.array([1, 1, 0]), NOISE)

    def run(factor, method):
        def model(x, t):
            return factor * jnp.concatenate([best(x, t), jnp.tanh(x)], axis=1)

        return sample(
            model, schedule, NOISE, steps=STEPS, inpaint=inpaint, key=KEY, method=method
        ).value

    @jax.jit
    def both(factor):
        def loss(factor, method):
            value = run(factor, method)
            return jnp.sum(value**2), value

        return [
            jax.value_and_grad(loss, has_aux=True)(factor, method)
            for method in ("sequential", Newton(Gaussian(STD)))
        ]

    (expected, slope), (found, found_slope) = both(0.9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found_slope, slope, rtol=1e-9)


@pytest.mark.parametrize("std", [0.0, -1, True, "small"])
def test_a_wrong_deviation(std):
    with pytest.raises(ValueError, match=r"std is .*, expected a positive number"):
        Gaussian(std)


def test_elsewhere_it_says_where_it_belongs():
    chain = Chain(lambda z, x: jnp.sin(z + x), jnp.ones(4))
    with pytest.raises(ValueError, match=r"linearize is Gaussian\(\).*diffusion\.sample"):
        solve(chain, jnp.float64(0), method=Newton(Gaussian()))
