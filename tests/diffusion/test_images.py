"""Image-to-image and inpainting: the samples of a loop that puts the known part back."""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Newton, Result
from deeppcr.diffusion import Inpaint, Schedule, sample
from tests.diffusion.test_sample import CONFIGS, KEY, NOISE, STEPS, WEIGHTS, predict
from tests.problems import assert_agree

START = 7
IMAGE = jnp.cos(jnp.arange(NOISE.size, dtype=NOISE.dtype)).reshape(NOISE.shape)
MASK = jnp.array([True, False, True, True, False, True])
SCHEDULES = {name: Schedule.from_config(config) for name, config in CONFIGS.items()}
SCHEDULES["plms"] = Schedule.from_config(CONFIGS["pndm"] | {"skip_prk_steps": True})


def model(x, t):
    return predict(WEIGHTS, x, t)


def loop(name, image, mask):
    """The samples after every step."""
    table = SCHEDULES[name].table(STEPS, START)
    inputs = table.inputs(image.dtype)
    if table.is_noisy:
        keys = [jax.random.fold_in(KEY, step) for step in range(table.steps)]
        inputs["noise"] = jnp.stack([jax.random.normal(key, image.shape) for key in keys])
    alpha, sigma = table.levels["alpha"], table.levels["sigma"]
    state = table.begin(alpha[0] * image + sigma[0] * NOISE)
    step = jax.jit(table.step(model))
    samples = []
    for index in range(table.steps):
        state = step(state, jax.tree.map(itemgetter(index), inputs))
        known = image
        if index + 1 < table.steps:
            known = alpha[index + 1] * image + sigma[index + 1] * NOISE
        x = jnp.where(mask, state["x"], known)
        state |= {"x": x}
        samples.append(x)
    return np.stack(samples)


def paint(name, image, mask, **options):
    x = SCHEDULES[name].add_noise(image, NOISE, steps=STEPS, start=START)
    options |= {"steps": STEPS, "start": START, "inpaint": Inpaint(image, mask, NOISE)}
    return sample(model, SCHEDULES[name], x, key=KEY, **options)


METHODS = [
    *((name, {"method": "newton"}) for name in ("ancestral", "flow", "heun", "plms")),
    ("dpm solver", {"method": Newton(linearize="diagonal")}),
    ("ddpm", {"method": Newton("identity", window=5), "coarse": 4}),
    ("unipc", {"method": "auto"}),
]


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_samples_are_those_of_a_loop(name, options):
    found = jax.jit(lambda image, mask: paint(name, image, mask, **options))(IMAGE, MASK)
    assert options["method"] != "newton" or found.result == Result.CONVERGED
    np.testing.assert_allclose(found.trajectory, loop(name, IMAGE, MASK), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.value[:, ~MASK], IMAGE[:, ~MASK])
    assert np.abs(found.value - IMAGE)[:, MASK].min() > 1e-3


def test_gradients_are_those_of_the_sequential_sampler():
    def gradient(**options):
        def loss(image, mask):
            return jnp.sin(paint("dpm solver", image, mask, **options).trajectory).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(IMAGE, MASK.astype(IMAGE.dtype))

    expected = gradient(method="sequential", adjoint="autodiff")
    assert_agree(gradient(method="newton"), expected)


def test_low_precision_and_a_mask_for_each_sample():
    image, noise = IMAGE.astype(jnp.bfloat16), NOISE.astype(jnp.bfloat16)
    mask = jnp.arange(NOISE.shape[0])[:, None] != 1
    x = SCHEDULES["ddim"].add_noise(image, noise, steps=STEPS, start=START)
    options = {"start": START, "inpaint": Inpaint(image, mask, noise), "method": "sequential"}
    found = sample(lambda x, t: jnp.tanh(x), SCHEDULES["ddim"], x, steps=STEPS, **options).value
    assert found.dtype == x.dtype == image.dtype
    np.testing.assert_array_equal(found[1], image[1])
    assert (found[0] != image[0]).any()


OF = SCHEDULES["ddim"]


def painted(*inpaint):
    return lambda: sample(model, OF, NOISE, inpaint=Inpaint(*inpaint), steps=10, method="newton")


BAD = [
    (lambda: OF.table(10, 10), ValueError, "start is 10, expected an integer < steps = 10"),
    (
        lambda: OF.table(10, -1),
        ValueError,
        "start is -1, expected an integer >= 0 .number of steps",
    ),
    (lambda: SCHEDULES["pndm"].table(10, 1), ValueError, "start is 1, but .* skip_prk_steps=True"),
    (
        lambda: OF.add_noise(IMAGE, NOISE[0], steps=10),
        ValueError,
        r"noise is float64\[6\], expected the shape \[3, 6\]",
    ),
    (
        lambda: OF.add_noise(jnp.ones(3, int), NOISE, steps=10),
        TypeError,
        r"image is int64\[3\], expected floating",
    ),
    (
        lambda: sample(model, OF, NOISE, inpaint=(IMAGE, MASK, NOISE), steps=10),
        TypeError,
        "inpaint is tuple.*expected a deeppcr.diffusion.Inpaint, or None",
    ),
    (painted(IMAGE[0], MASK, NOISE), ValueError, r"inpaint.image is float64\[6\], .* \[3, 6\]"),
    (painted(IMAGE, MASK[:2], NOISE), ValueError, r"inpaint.mask is bool\[2\], .* \[3, 6\]"),
    (
        lambda: sample(model, OF, NOISE, coarse=2, steps=10, method="sequential"),
        ValueError,
        "coarse is 2, but method is .* has no coarse",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_images(call, error, message):
    with pytest.raises(error, match=message):
        call()
