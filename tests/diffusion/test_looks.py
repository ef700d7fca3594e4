"""What users look at: the samples on the way, by step and by iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Newton
from deeppcr.diffusion import Schedule, pred_original_sample
from tests.diffusion.test_sample import CONFIGS, KEY, NOISE, STEPS, WEIGHTS, run, sequential
from tests.problems import pairs

SAMPLE = jnp.cos(jnp.arange(NOISE.size, dtype=NOISE.dtype)).reshape(NOISE.shape)
# By prediction type, with the noise e: the output of a model that knows the sample.
OUTPUTS = {
    "epsilon": lambda alpha, sigma, e: e,
    "sample": lambda alpha, sigma, e: SAMPLE,
    "v_prediction": lambda alpha, sigma, e: alpha * e - sigma * SAMPLE,
    "flow_prediction": lambda alpha, sigma, e: e - SAMPLE,
}
PREDICTIONS = [
    ("DDIMScheduler", "epsilon", {"clip_sample": True, "clip_sample_range": 0.5}),
    ("DDPMScheduler", "v_prediction", {"clip_sample": False}),
    ("EulerDiscreteScheduler", "v_prediction", {}),
    ("HeunDiscreteScheduler", "epsilon", {}),
    ("PNDMScheduler", "v_prediction", {}),
    ("DPMSolverMultistepScheduler", "sample", {}),
    ("UniPCMultistepScheduler", "flow_prediction", {"use_flow_sigmas": True}),
    ("FlowMatchEulerDiscreteScheduler", "flow_prediction", {}),
]


@pytest.mark.parametrize(("case", "window"), pairs(PREDICTIONS, [None, 7]))
def test_the_sample_that_the_model_knows_is_predicted_from_any(case, window):
    scheduler, prediction, fields = case
    config = {"_class_name": scheduler, **fields}
    if "FlowMatch" not in scheduler:
        config["prediction_type"] = prediction
    of = Schedule.from_config(config)
    start = 0 if scheduler == "PNDMScheduler" else 3
    table = of.table(STEPS, start)
    alpha, sigma = (jnp.asarray(table.scale * column) for column in table.levels.values())

    def model(y, t):
        at = jnp.argmin(jnp.abs(jnp.asarray(table.time) - t))
        noise = (y - alpha[at] * SAMPLE) / sigma[at]
        return OUTPUTS[prediction](alpha[at], sigma[at], noise)

    trajectory = jax.random.normal(KEY, (table.steps, *NOISE.shape))
    found = pred_original_sample(
        model, of, NOISE, trajectory, steps=STEPS, start=start, window=window
    )
    bound = fields.get("clip_sample_range", np.inf)
    assert found.shape == trajectory.shape
    expected = np.broadcast_to(np.clip(SAMPLE, -bound, bound), found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_samples_after_some_iterations():
    """Each iteration adds at least one step to those that are right; memory is not shown."""
    expected, count = sequential("unipc").trajectory, 3
    method = Newton(max_iterations=count, on_failure="return")
    found = jax.jit(lambda noise: run("unipc", WEIGHTS, noise, method=method))(NOISE)
    assert found.stats.iterations == count
    assert found.trajectory.shape == expected.shape
    np.testing.assert_array_equal(found.trajectory[-1], found.value)
    np.testing.assert_allclose(found.trajectory[:count], expected[:count], rtol=1e-9)


def test_bad_looks():
    of = Schedule.from_config(CONFIGS["heun"])
    with pytest.raises(
        ValueError, match=r"trajectory is float64\[3, 6\], expected .* \[39, 3, 6\]"
    ):
        pred_original_sample(lambda x, t: x, of, NOISE, NOISE, steps=STEPS)
