"""`deeppcr.diffusion.sample`: whatever the method, the samples of the sequential sampler."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from deeppcr import Anderson, Newton, Result, Scalar
from deeppcr.diffusion import Inpaint, Schedule, guided, plan, sample
from tests.problems import assert_agree

STEPS, BATCH, WIDTH = 20, 3, 6
CONFIGS = {
    "ddim": {"_class_name": "DDIMScheduler", "clip_sample": False},
    "ddim clipped": {
        "_class_name": "DDIMScheduler",
        "prediction_type": "v_prediction",
        "timestep_spacing": "trailing",
    },
    "ddpm": {"_class_name": "DDPMScheduler"},
    "euler": {"_class_name": "EulerDiscreteScheduler"},
    "ancestral": {
        "_class_name": "EulerAncestralDiscreteScheduler",
        "prediction_type": "v_prediction",
    },
    "dpm solver": {"_class_name": "DPMSolverMultistepScheduler"},
    "flow": {"_class_name": "FlowMatchEulerDiscreteScheduler"},
    # States of two, five and four samples.
    "heun": {"_class_name": "HeunDiscreteScheduler"},
    "pndm": {"_class_name": "PNDMScheduler"},
    "unipc": {"_class_name": "UniPCMultistepScheduler"},
}
KEY = jax.random.key(1)
WEIGHTS = {
    "in": 0.5 * jax.random.normal(jax.random.key(2), (WIDTH, 8)),
    "out": 0.3 * jax.random.normal(jax.random.key(3), (8, WIDTH)),
}
NOISE = jax.random.normal(jax.random.key(4), (BATCH, WIDTH))


def predict(weights, x, t):
    """A small network, of inputs of any size."""
    x = x / jnp.sqrt(1 + jnp.square(x).mean(-1, keepdims=True))
    return jnp.tanh(x @ weights["in"] + jnp.asarray(t, x.dtype) / 1000) @ weights["out"]


def schedule(name):
    return Schedule.from_config(CONFIGS[name])


def run(name, weights, noise, key=KEY, **options):
    """All samples, from noise of deviation 1."""
    of = schedule(name)
    x_T = noise * jnp.asarray(of.init_noise_sigma(STEPS), noise.dtype)
    return sample(lambda x, t: predict(weights, x, t), of, x_T, steps=STEPS, key=key, **options)


@cache
def sequential(name):
    """By `jax.lax.scan` itself."""
    return jax.jit(
        lambda weights, noise: run(name, weights, noise, method="sequential", adjoint="autodiff")
    )(WEIGHTS, NOISE)


# Configurations and options of `sample`; others are in `test_images`. 20 steps: no multiple of 6 or 8.
METHODS = [
    *((name, {"method": "newton"}) for name in ("ddim clipped", "heun", "pndm")),
    *(
        (name, {"method": Newton("identity", window=8), "coarse": 6})
        for name in ("ancestral", "dpm solver", "flow")
    ),
    ("dpm solver", {"method": "auto", "coarse": 4}),
    ("ddim", {"method": "picard"}),
    ("dpm solver", {"method": Newton(linearize="identity", acceleration=Anderson())}),
    ("dpm solver", {"method": "pcr", "adjoint": "pcr"}),
    (
        "dpm solver",  # the sampler's own coefficient
        {"method": Newton(Scalar(jnp.asarray(schedule("dpm solver").table(STEPS).linear_part)))},
    ),
]


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_samples_are_those_of_the_sequential_sampler(name, options):
    steps = schedule(name).table(STEPS).steps
    found = jax.jit(lambda weights, noise: run(name, weights, noise, **options))(WEIGHTS, NOISE)
    expected = sequential(name)
    assert found.trajectory.shape == (steps, *NOISE.shape)
    assert_agree((found.value, found.trajectory), (expected.value, expected.trajectory))
    if options["method"] == "newton":
        assert found.result == Result.CONVERGED
        assert found.stats.iterations < STEPS


def test_newton_with_a_learned_variance():
    """Whose half of the output may be along any axis."""
    of = Schedule.from_config({"_class_name": "DDPMScheduler", "variance_type": "learned_range"})

    def both(x, t):
        output = predict(WEIGHTS, x, t)
        return jnp.concatenate([output, jnp.tanh(output)], axis=1)

    def solve(method):
        return sample(both, of, NOISE, steps=STEPS, key=KEY, method=method)

    found, expected = solve("newton"), solve("sequential")
    assert found.result == Result.CONVERGED
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9, atol=1e-9)
    with pytest.raises(TypeError, match=r"with one axis twice as long for the learned variance"):
        sample(lambda x, t: x, of, NOISE, steps=STEPS, key=KEY)


def test_guidance_takes_the_variance_of_the_condition():
    def both(x, t, label):
        return jnp.concatenate([label * x, label * x], axis=1)

    found = guided(both, 3.0)(NOISE, 0, jnp.float64(2), jnp.float64(1))
    np.testing.assert_allclose(found, jnp.concatenate([4 * NOISE, 2 * NOISE], axis=1))


def test_a_coarse_start_saves_iterations():
    """At rounding level a single entry may decide, so it is seen at a tolerance above that."""

    @jax.jit
    def iterations(weights, noise):
        found = [
            run("ddim", weights, noise, method=Newton(rtol=1e-5), coarse=coarse)
            for coarse in (None, 2)
        ]
        return [each.stats.iterations for each in found]

    plain, coarse = iterations(WEIGHTS, NOISE)
    assert coarse < plain


@pytest.mark.parametrize(("name", "method"), [("ddpm", "newton"), ("dpm solver", "picard")])
def test_gradients_are_those_of_the_sequential_sampler(name, method):
    def loss(weights, noise, **options):
        found = run(name, weights, noise, **options)
        return jnp.square(found.value).sum() + jnp.sin(found.trajectory).sum()

    @jax.jit
    def gradients(weights, noise):
        ours, autodiff = {"method": method}, {"method": "sequential", "adjoint": "autodiff"}
        return [
            jax.grad(partial(loss, **options), argnums=(0, 1))(weights, noise)
            for options in (ours, autodiff)
        ]

    assert_agree(*gradients(WEIGHTS, NOISE))


def test_images_without_a_batch_and_of_lower_precision():
    of = schedule("ddim")
    image = jax.random.normal(jax.random.key(5), (2, 4, 4), jnp.float32)

    def result(dtype, method):
        def model(x, t):
            return jnp.tanh(x) * jnp.asarray(0.5, x.dtype)

        found = jax.jit(
            lambda x: sample(model, of, x, steps=STEPS, method=method, batch_ndim=0).value
        )(image.astype(dtype))
        assert found.dtype == dtype
        assert found.shape == image.shape
        return np.asarray(found, np.float32)

    exact = result(jnp.float32, "sequential")
    np.testing.assert_allclose(result(jnp.float32, "newton"), exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result(jnp.bfloat16, "newton"), exact, rtol=0.02, atol=0.02)
    rounded_at_every_step = STEPS * 2.0**-9 * np.abs(exact).max()
    np.testing.assert_allclose(
        result(jnp.bfloat16, "sequential"), exact, rtol=0, atol=rounded_at_every_step
    )


def test_a_guess_is_a_trajectory_of_samples():
    right = run("ddim", WEIGHTS, NOISE, method="sequential")
    for guess in (right.trajectory, lambda x_T, inputs: right.trajectory):
        found = run("ddim", WEIGHTS, NOISE, method=Newton(initial_guess=guess))
        assert int(found.stats.iterations) <= 1
        np.testing.assert_allclose(found.value, right.value, rtol=1e-5, atol=1e-6)


def test_noise_depends_on_the_key_alone():
    """In a batch of keys as in a loop over them."""
    keys = jnp.stack([KEY, jax.random.key(9)])
    each = jax.jit(jax.vmap(lambda key: run("ddpm", WEIGHTS, NOISE, key, method="newton").value))(
        keys
    )
    in_turn = jax.jit(
        lambda: lax.map(
            lambda key: run("ddpm", WEIGHTS, NOISE, key, method="sequential").value, keys
        )
    )()
    np.testing.assert_allclose(each, in_turn, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(each[0], sequential("ddpm").value, rtol=1e-9, atol=1e-9)
    assert not np.allclose(*each, atol=1e-2)


def test_progress_is_printed(capsys):
    found = run("ddim", WEIGHTS, NOISE, method=Newton(progress=True))
    jax.effects_barrier()
    last = f"iteration {int(found.stats.iterations)}: {STEPS} of {STEPS} steps, residual"
    assert last in capsys.readouterr().err


def test_arguments_and_guidance():
    """As if the model closed over them, with one call for each condition; gradients, too."""
    labels, none, scale = jnp.array([0, 1, 1]), jnp.array([2, 2, 2]), 2.5
    of = schedule("ddim clipped")

    def conditional(x, t, condition):
        weights, label = condition
        return predict(weights, x, t) + jax.nn.one_hot(label, WIDTH)

    def closed(weights):
        def model(x, t):
            with_it, without = (conditional(x, t, (weights, each)) for each in (labels, none))
            return without + scale * (with_it - without)

        return sample(model, of, NOISE, steps=STEPS, method="sequential", adjoint="autodiff")

    def given(weights):
        args = (weights, labels), (weights, none)
        return sample(
            guided(conditional, scale), of, NOISE, steps=STEPS, args=args, method="newton"
        )

    def both(solve):
        def loss(weights):
            value = solve(weights).value
            return jnp.square(value).sum(), value

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(WEIGHTS)

    assert_agree(both(given), both(closed))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: guided(3, 2.0), TypeError, "model is .*expected a function"),
        (lambda: guided(predict, "much"), TypeError, "scale is 'much', expected a number"),
        (
            lambda: guided(predict, 2)(NOISE, 0, jnp.ones(2), jnp.ones(3)),
            ValueError,
            r"condition is float64\[2\] and no_condition is float64\[3\], expected the same",
        ),
    ],
)
def test_bad_guidance(call, error, message):
    with pytest.raises(error, match=message):
        call()


GOOD = {"model": lambda x, t: x, "schedule": schedule("ddim"), "x_T": NOISE, "steps": 10}
SHAPE = r"expected .* shape of x_T, float64\[3, 6\]"
BAD = [
    ("schedule", CONFIGS["ddim"], TypeError, "schedule is dict.*expected a Schedule"),
    ("model", 3, TypeError, "model is .*expected a function"),
    ("model", lambda x, t: x[:, :2], TypeError, rf"model returns float64\[3, 2\], {SHAPE}"),
    # No variance, but two batches.
    ("model", lambda x, t: jnp.concatenate([x, x]), TypeError, rf"float64\[6, 6\], {SHAPE}"),
    ("model", lambda x, t: (x, x), TypeError, "model returns tuple.*expected an array"),
    ("args", NOISE, TypeError, r"args is float64\[3, 6\], expected a tuple"),
    ("x_T", jnp.ones((2, 3), int), TypeError, "x_T has dtype int64, expected a floating one"),
    ("x_T", jnp.float64(1.0), ValueError, r"x_T has shape \[\], expected at least batch_ndim = 1"),
    ("x_T", "noise", TypeError, "x_T is the string 'noise', expected an array"),
    ("steps", 0, ValueError, "steps is 0"),
    ("steps", 2.5, TypeError, "steps is 2.5"),
    ("coarse", 0, ValueError, "coarse is 0"),
    ("method", "euler", ValueError, "method is 'euler'"),
    ("num_inference_steps", 50, TypeError, "'num_inference_steps'.*did you mean 'steps'"),
    ("generator", KEY, TypeError, "'generator', expected one of .*did you mean 'key'"),
    ("schedule", schedule("ddpm"), ValueError, "key is None, but .*DDPMScheduler.* adds noise"),
]


@pytest.mark.parametrize(("name", "value", "error", "message"), BAD)
@pytest.mark.parametrize("call", [sample, plan])
def test_bad_input(call, name, value, error, message):
    options = {"method": "newton"} | GOOD | {name: value}
    arguments = [options.pop(each) for each in ("model", "schedule", "x_T")]
    with pytest.raises(error, match=message):
        call(*arguments, **options)


def test_names_of_other_libraries_are_understood_before_an_argument_is_missed():
    message = r"^sample\(\) got .*'num_inference_steps'.*did you mean 'steps'\?$"
    with pytest.raises(TypeError, match=message):
        sample(lambda x, t: x, schedule("ddim"), NOISE, num_inference_steps=10)
    with pytest.raises(TypeError, match=r"x_T is the shape float32\[3\], expected an array"):
        sample(lambda x, t: x, schedule("ddim"), jax.ShapeDtypeStruct((3,), "float32"), steps=3)
    with pytest.raises(ValueError, match=r"key is 3, but .* expected a key, such as jax.random"):
        sample(lambda x, t: x, schedule("ddpm"), NOISE, steps=3, key=3)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'steps'"):
        sample(lambda x, t: x, schedule("ddim"), NOISE)


def test_a_sampler_is_planned_with_its_own_arguments():
    model, of = partial(predict, WEIGHTS), schedule("unipc")
    shape = jax.ShapeDtypeStruct(NOISE.shape, NOISE.dtype)
    keep = Inpaint(NOISE, NOISE > 0, NOISE)
    plans = [
        plan(model, of, x_T, steps=STEPS, start=5, inpaint=keep, device="H100", method="newton")
        for x_T in (NOISE, shape)
    ]
    for found in plans:
        assert found.found["chain"] == "15 steps, a state of 24 entries, a batch of 3"
        assert found.device.name == "H100"
        assert found.newton.method == Newton()
    assert "from the whole chain" in plans[0].found["iterations"]
    assert "usual" in plans[1].found["iterations"]
    result = plan(model, of, NOISE, steps=STEPS)
    assert sample(model, of, NOISE, steps=STEPS, method=result.method).converged


@pytest.mark.parametrize("options", [{"coarse": 4}, {"key": KEY}])
def test_a_plan_counts_the_iterations_that_the_sampler_takes(options):
    model, of = partial(predict, WEIGHTS), schedule("ddpm" if "key" in options else "ddim")
    arguments = model, of, NOISE
    found = plan(*arguments, steps=STEPS, method="newton", **options)
    solution = sample(*arguments, steps=STEPS, method=Newton(atol=0.0), **options)
    assert found.newton.iterations == solution.stats.iterations
