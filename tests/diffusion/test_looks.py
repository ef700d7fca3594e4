"""What users look at: the samples on the way, by step and by iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Newton
from deeppcr.diffusion import Schedule, pred_original_sample
from tests.diffusion.test_sample import (
    CONFIGS,
    KEY,
    NOISE,
    STEPS,
    WEIGHTS,
    predict,
    run,
    sequential,
)

SAMPLE = jnp.cos(jnp.arange(NOISE.size, dtype=NOISE.dtype)).reshape(NOISE.shape)
# By prediction type, with the noise e: the output of a model that knows the sample.
OUTPUTS = {
    "epsilon": lambda alpha, sigma, e: e,
    "sample": lambda alpha, sigma, e: SAMPLE,
    "v_prediction": lambda alpha, sigma, e: alpha * e - sigma * SAMPLE,
    "flow_prediction": lambda alpha, sigma, e: e - SAMPLE,
}
# Every type, a sample that is clipped, scaled inputs, a memory, flow matching; starts and windows.
PREDICTIONS = [
    ("DDIM", "epsilon", {"clip_sample": True, "clip_sample_range": 0.5}, 3, None),
    ("HeunDiscrete", "v_prediction", {}, 3, 7),
    ("PNDM", "v_prediction", {}, 0, None),
    ("DPMSolverMultistep", "sample", {}, 3, 7),
    ("UniPCMultistep", "flow_prediction", {"use_flow_sigmas": True}, 0, 1),
    ("FlowMatchEulerDiscrete", "flow_prediction", None, 3, 100),
]


@pytest.mark.parametrize(("scheduler", "prediction", "fields", "start", "window"), PREDICTIONS)
def test_the_sample_that_the_model_knows_is_predicted_from_any(
    scheduler, prediction, fields, start, window
):
    fields = {} if fields is None else {"prediction_type": prediction, **fields}
    of = Schedule.from_config({"_class_name": f"{scheduler}Scheduler", **fields})
    table = of.table(STEPS, start)
    alpha, sigma = (jnp.asarray(table.scale * column) for column in table.levels.values())

    def model(y, t):
        at = jnp.argmin(jnp.abs(jnp.asarray(table.time) - t))
        noise = (y - alpha[at] * SAMPLE) / sigma[at]
        return OUTPUTS[prediction](alpha[at], sigma[at], noise)

    trajectory = jax.random.normal(KEY, (table.steps, *NOISE.shape))
    options = {"steps": STEPS, "start": start, "window": window}
    found = pred_original_sample(model, of, NOISE, trajectory, **options)
    bound = fields.get("clip_sample_range", np.inf)
    assert found.shape == trajectory.shape
    expected = np.broadcast_to(np.clip(SAMPLE, -bound, bound), found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"trajectory is float64\[3, 6\], expected .*, 3, 6\]"):
        pred_original_sample(model, of, NOISE, NOISE, **options)


def test_the_last_step_of_ddim_goes_to_what_is_predicted_from_the_sample_before_it():
    def of_weights(x, t, weights):
        return predict(weights, x, t)

    found = pred_original_sample(
        *(of_weights, Schedule.from_config(CONFIGS["ddim"]), NOISE, sequential("ddim").trajectory),
        steps=STEPS,
        args=(WEIGHTS,),
    )
    np.testing.assert_allclose(found[-1], sequential("ddim").value, rtol=1e-4)


def test_samples_after_some_iterations():
    """Each iteration adds at least one step to those that are right; memory is not shown."""
    expected, count = sequential("unipc").trajectory, 3
    method = Newton(max_iterations=count, on_failure="return")
    found = jax.jit(lambda noise: run("unipc", WEIGHTS, noise, method=method))(NOISE)
    assert found.stats.iterations == count
    np.testing.assert_array_equal(found.trajectory[-1], found.value)
    np.testing.assert_allclose(found.trajectory[:count], expected[:count], rtol=1e-9)
