"""Schedules against samples of diffusers (make_golden.py); their configurations; their errors."""

import json
import re
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.diffusion import Schedule
from deeppcr.diffusion.output import threshold
from deeppcr.diffusion.schedulers import SCHEDULERS
from tests.diffusion import ours
from tests.diffusion.cases import CASES, FIRST, NOISE, PARALLEL, Case, kept
from tests.diffusion.published import FLUX, PUBLISHED

DDIM = {
    "_class_name": "DDIMScheduler",
    "_diffusers_version": "0.42.1",
    "clip_sample": False,
    "steps_offset": 1,
}


@pytest.fixture(scope="module")
def golden():
    """By case: times, the first sample's scale, and three samples."""
    with np.load(Path(__file__).parent / "golden.npz") as file:
        figures = dict(file)
    assert figures["names"].tolist() == list(CASES), "the cases have changed: run make_golden again"
    parity = Path(__file__).with_name("parity.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in parity.splitlines()]
    assert [row["case"] for row in rows if "case" in row] == list(CASES | PARALLEL)
    times = np.split(figures["times"], np.cumsum(figures["calls"])[:-1])
    return dict(
        zip(CASES, zip(times, figures["sigmas"], figures["samples"], strict=True), strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_samples_are_those_of_diffusers(name, golden):
    case = CASES[name]
    times, sigma, samples = golden[name]
    schedule = case.schedule()
    table = schedule.table(case.steps, case.start)
    is_continuous = any(name in schedule.scheduler for name in ("Euler", "Heun", "LMS"))
    assert table.time.dtype == (np.float32 if is_continuous else np.int32)
    np.testing.assert_allclose(table.time, times, rtol=1e-6)
    np.testing.assert_allclose(schedule.init_noise_sigma(case.steps), sigma, rtol=1e-6)
    found = kept(ours.walk(case))
    scale = np.abs(samples).max(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(found / scale, samples / scale, rtol=0, atol=2e-5)


def test_cases_cover_all_schedulers():
    found = {case.config["_class_name"] for case in (CASES | PARALLEL).values()}
    assert found == set(SCHEDULERS)


# Between them they have all columns: noise, memory, a scale, a correction, a learned variance.
WALKED = ("sde midpoint", "euler v_prediction", "ddpm clipped", "ddpm learned_range")


@pytest.mark.parametrize("name", WALKED)
def test_steps_work_within_jit_vmap_and_grad(name):
    case = CASES[name]
    first = case.schedule().init_noise_sigma(case.steps) * FIRST
    noise = jnp.asarray(NOISE[: case.steps])

    def total(x):
        value = jax.vmap(lambda x: ours.scan(case, x, noise))(x)
        return value.sum(), value

    (_, value), slope = jax.jit(jax.value_and_grad(total, has_aux=True))(
        jnp.stack([first, 2 * first])
    )
    np.testing.assert_allclose(value[0], ours.walk(case)[-1], rtol=1e-10, atol=1e-12)
    assert np.isfinite(slope).all()
    assert np.abs(slope).max() > 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", WALKED)
def test_steps_keep_a_low_precision(name, dtype):
    case = CASES[name]
    first = case.schedule().init_noise_sigma(case.steps) * FIRST
    found = ours.scan(case, jnp.asarray(first, dtype), jnp.asarray(NOISE[: case.steps], dtype))
    assert found.dtype == dtype
    expected = ours.walk(case)[-1]
    error = np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max()
    assert error < 30 * jnp.finfo(dtype).eps


def test_thresholding_in_low_precision_and_its_derivative():
    correct = partial(threshold, ratio=0.5, largest=1.5)
    clean = jnp.array([[0.5, -1.25, 3.0], [0.1, 0.2, -0.4]])
    expected = np.array(
        [[0.4, -1.0, 1.0], [0.1, 0.2, -0.4]]
    )  # the medians of the sizes are 1.25 and 0.2, which counts as 1
    np.testing.assert_allclose(correct(clean), expected)
    assert correct(clean.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    slope = jax.jit(jax.grad(lambda clean: correct(clean)[0, 0]))(clean)
    np.testing.assert_allclose(slope, [[1 / 1.25, 0.5 / 1.25**2, 0.0], [0.0, 0.0, 0.0]])


def test_an_output_of_another_precision_leaves_the_state_as_it_is():
    table = Schedule.from_config(DDIM).table(4)
    at = jax.tree.map(lambda column: column[0], table.inputs(jnp.float32))
    moved = table.advance(jnp.ones((2, 3), jnp.float32), jnp.ones((2, 3), jnp.bfloat16), at)
    assert moved.dtype == jnp.float32


@pytest.mark.parametrize(
    "name", ["ddim eta", "ddim clipped", "euler sample", "unipc threshold", "plms v_prediction"]
)
def test_linear_part_is_the_derivative_with_the_output_held(name):
    case = CASES[name]
    table = case.schedule().table(case.steps)
    inputs = table.inputs(jnp.float64) | {"noise": jnp.zeros((table.steps, 1, 1))}
    small = jnp.full((1, 1), 1e-3)  # not clipped

    def moved(x, at):
        start = jax.tree.map(jnp.zeros_like, table.begin(x))
        state = start | {"x": x} if table.remembers else x
        return table.newest(table.advance(state, jnp.zeros((1, 1)), at))[0, 0]

    slopes = jax.vmap(jax.grad(moved), in_axes=(None, 0))(small, inputs)[:, 0, 0]
    np.testing.assert_allclose(table.linear_part, slopes, rtol=1e-12)


def test_the_logarithm_of_the_large_variance_is_that_variance():
    """In diffusers, it is NaN."""
    tables = [
        Schedule.from_config({"_class_name": "DDPMScheduler", "variance_type": name}).table(5)
        for name in ("fixed_large", "fixed_large_log")
    ]
    np.testing.assert_array_equal(*(table.update["x"]["noise"] for table in tables))


def test_columns_that_are_nought_are_no_inputs():
    table = Schedule.from_config(DDIM).table(4)
    assert set(table.inputs(jnp.float32)) == {"time", "x"}
    assert set(table.inputs(jnp.float32)["x"]) == {"x", "m"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_taken_as_it_is(name):
    """With one warning, which lists the fields of other schedulers, and no others."""
    config, others, options = PUBLISHED[name]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        schedule = Schedule.from_config(config, **options)
    assert len(said) == bool(others)
    if said:
        assert set(re.findall(r"(\w+)=", str(said[0].message))) == others
        assert said[0].filename == __file__
    read = {name: value for name, value in config.items() if name not in others}
    assert schedule == Schedule.from_config(read, **options)
    assert schedule.table(10).is_finite


@pytest.mark.parametrize("form", [str, Path])
@pytest.mark.parametrize("where", ["scheduler_config.json", "scheduler/scheduler_config.json"])
def test_a_schedule_is_read_from_a_file_or_a_folder(tmp_path, form, where):
    file = tmp_path / where
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(DDIM))
    expected = Schedule.from_config(DDIM)
    assert Schedule.from_config(form(tmp_path)) == expected
    assert Schedule.from_config(form(file)) == expected


def test_a_scheduler_object_is_read_by_the_parameters_of_its_class():
    class DDIMScheduler:
        def __init__(self, clip_sample=True, steps_offset=0):
            self.config = {
                "clip_sample": clip_sample,
                "steps_offset": steps_offset,
                "skip_prk_steps": True,
            }

    assert Schedule.from_config(DDIMScheduler(False, 1)) == Schedule.from_config(DDIM)


def test_a_schedule_can_be_hashed_and_tells_what_is_not_default():
    schedule = Schedule.from_config(DDIM | {"trained_betas": np.full(1000, 0.01)}, eta=0.5)
    assert schedule == Schedule.from_config(DDIM | {"trained_betas": [0.01] * 1000}, eta=0.5)
    assert len({schedule, Schedule.from_config(DDIM), Schedule.from_config(DDIM)}) == 2
    assert (
        repr(Schedule.from_config(DDIM, eta=0.5))
        == "Schedule(DDIMScheduler, steps_offset=1, clip_sample=False, eta=0.5)"
    )


def test_trailing_times_are_as_many_as_the_steps():
    schedule = Schedule.from_config(DDIM | {"timestep_spacing": "trailing"})
    for steps in (61, 103, 998, 1000):  # where rounding errors make one more of some of them
        time = schedule.table(steps).time
        assert len(time) == steps
        assert time[0] == 999
        assert time[-1] >= 0


def bad(scheduler, message, steps=10, eta=0.0, **fields):
    return pytest.param(
        {"_class_name": scheduler, **fields}, steps, eta, message, id=f"{scheduler} {message[:40]}"
    )


BAD = [
    bad(
        "KDPM2DiscreteScheduler",
        r"_class_name is 'KDPM2DiscreteScheduler', expected one of \['DDIMParallelScheduler', 'DDIM"
        ".*; take HeunDiscreteScheduler, for the same models",
    ),
    bad("PNDScheduler", "did you mean 'PNDMScheduler'"),
    bad(None, "_class_name is None"),
    bad(
        "DDIMScheduler",
        "step_offset=1 is not a field of DDIMScheduler, .* did you mean 'steps_offset'",
        step_offset=1,
    ),
    bad(
        "DDIMScheduler",
        "beta_schedule='sigmoid' is not supported for DDIM.*scaled_linear",
        beta_schedule="sigmoid",
    ),
    bad("DDIMScheduler", "prediction_type='flow' is not supported", prediction_type="flow"),
    bad(
        "DDIMScheduler",
        r"clip_sample=1 is not supported.*expected one of \[True, False",
        clip_sample=1,
    ),
    bad(
        "DDIMScheduler",
        r"clip_sample_range='1' is not supported.*expected a number",
        clip_sample_range="1",
    ),
    bad(
        "DDIMScheduler",
        r"num_train_timesteps=0 is not .*expected an integer >= 1",
        num_train_timesteps=0,
    ),
    bad("DDIMScheduler", r"steps_offset=\[1\] is not", steps_offset=[1]),
    bad(
        "DDIMScheduler",
        "trained_betas has 2 entries, expected num_train_timesteps=1000",
        trained_betas=[0.1, 0.2],
    ),
    bad(
        "DDIMScheduler",
        r"trained_betas='no' is not supported.*a list of numbers",
        trained_betas="no",
    ),
    bad(
        "DDIMScheduler",
        "steps_offset=7 moves the first of 1000 steps to time 1006",
        steps=1000,
        steps_offset=7,
    ),
    bad("DDIMScheduler", "steps is 1001, expected at most num_train_timesteps=1000", steps=1001),
    bad("DDIMScheduler", r"steps is 0, .*an integer >= 1", steps=0),
    bad("DDIMScheduler", "eta is -1, expected a number >= 0", eta=-1),
    bad("DDIMScheduler", "eta is 'much', expected a number >= 0", eta="much"),
    bad(
        "DDIMScheduler",
        r"Schedule\(DDIMScheduler, eta=9.0\) has coefficients that are not finite for steps=10",
        eta=9,
    ),
    bad(
        "DDPMScheduler",
        "prediction_type='epsilon' with rescale_betas_zero_snr=True",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
    ),
    bad("DDPMScheduler", "eta is 0.5, but DDPMScheduler takes none: expected 0", eta=0.5),
    bad(
        "DDPMScheduler",
        "dynamic_thresholding_ratio=99 is not .*a number from 0 to 1",
        dynamic_thresholding_ratio=99,
    ),
    bad(
        "DDPMScheduler",
        "variance_type='learnt' is not supported.*'learned_range'",
        variance_type="learnt",
    ),
    bad("PNDMScheduler", "steps is 3, expected at least 4, or skip_prk_steps=True", steps=3),
    bad("PNDMScheduler", "prediction_type='sample' is not supported", prediction_type="sample"),
    bad("LCMScheduler", "steps is 51, expected at most original_inference_steps=50", steps=51),
    bad("UniPCMultistepScheduler", "predict_x0=False with final_sigmas", predict_x0=False),
    bad("UniPCMultistepScheduler", "not finite for steps=1000: some of its times", steps=1000),
    bad("DEISMultistepScheduler", "not finite for steps=1000: some of its times", steps=1000),
    bad("DPMSolverMultistepScheduler", "not finite for steps=1000: some of its", steps=1000),
    bad(
        "UniPCMultistepScheduler",
        "solver_p='x' is not supported.*expected one of .None",
        solver_p="x",
    ),
    bad("UniPCMultistepScheduler", "shift_terminal needs use_flow_sigmas", shift_terminal=0.1),
    bad(
        "EulerDiscreteScheduler",
        "use_karras_sigmas and use_exponential_sigmas are True, expected at most one",
        use_karras_sigmas=True,
        use_exponential_sigmas=True,
    ),
    bad(
        "EulerAncestralDiscreteScheduler",
        "prediction_type='sample' is not supported",
        prediction_type="sample",
    ),
    bad(
        "DPMSolverMultistepScheduler",
        "solver_order=4 is not supported.*>= 1 and <= 3",
        solver_order=4,
    ),
    bad(
        "DPMSolverMultistepScheduler",
        r"with final_sigmas_type='zero': .*='sigma_min', or algorithm_type='dpmsolver\+\+'",
        algorithm_type="dpmsolver",
    ),
    bad(
        "DPMSolverMultistepScheduler",
        "'sde-dpmsolver' has no third order, expected solver_order=2",
        algorithm_type="sde-dpmsolver",
        solver_order=3,
        final_sigmas_type="sigma_min",
    ),
    bad(
        "DPMSolverMultistepScheduler",
        "prediction_type='flow_prediction' needs use_flow_sigmas=True",
        prediction_type="flow_prediction",
    ),
    bad(
        "DPMSolverMultistepScheduler",
        "lambda_min_clipped=-3.0 with timestep_spacing='trailing' leaves 8 of 10 steps",
        lambda_min_clipped=-3.0,
        timestep_spacing="trailing",
    ),
    bad(
        "FlowMatchEulerDiscreteScheduler",
        "use_dynamic_shifting=True: the shift depends on the image; expected image_seq_len",
        use_dynamic_shifting=True,
    ),
]


@pytest.mark.parametrize(("config", "steps", "eta", "message"), BAD)
def test_what_is_not_supported_is_named(config, steps, eta, message):
    with pytest.raises(ValueError, match=message):
        Schedule.from_config(config, eta=eta).table(steps)


FLOW = {"_class_name": "FlowMatchEulerDiscreteScheduler"}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (DDIM, {"mu": 0.5}, "mu is 0.5, but DDIMScheduler takes none: expected None, or one of"),
        (DDIM, {"image_seq_len": 64}, "image_seq_len is 64, but DDIMScheduler takes none"),
        (FLOW, {"mu": 0.5}, "mu is 0.5, but use_dynamic_shifting is False"),
        (FLUX, {"mu": 0.5, "image_seq_len": 64}, "mu and image_seq_len are given"),
        (FLUX, {"image_seq_len": 0}, "image_seq_len is 0, expected how many tokens"),
        (FLOW, {"sigmas": [1.0, 0.5]}, "steps is 10, but the schedule has 2 sigmas of its own"),
        ({"_class_name": "UniPCMultistepScheduler"}, {"sigmas": [1.0]}, "use_flow_sigmas is False"),
    ],
)
def test_options_that_do_not_fit_are_named(config, options, message):
    with pytest.raises(ValueError, match=message):
        Schedule.from_config(config, **options).table(10)


def test_the_shift_of_flux_follows_from_the_size_of_the_image():
    """Linear in the number of tokens: 0.5 at 256, and 1.15 at 4096."""
    sigmas = np.linspace(1, 1 / 8, 8)
    for pixels, mu in ((256, 0.5), (1024, 1.15), (512, 0.5 + 0.65 * 768 / 3840)):
        tokens = (pixels // 16) ** 2
        schedule = Schedule.from_config(FLUX, image_seq_len=tokens, sigmas=sigmas)
        assert schedule == Schedule.from_config(FLUX, mu=schedule.mu, sigmas=sigmas)
        assert schedule.mu == pytest.approx(mu, abs=1e-12)
        expected = 1000 * np.exp(mu) / (np.exp(mu) + 1 / sigmas - 1)
        np.testing.assert_allclose(schedule.table(8).time, expected, rtol=1e-6)


def test_what_is_no_configuration_is_named(tmp_path):
    with pytest.raises(
        TypeError, match="config is int, expected a dict, a path, or a scheduler of diffusers"
    ):
        Schedule.from_config(3)
    with pytest.raises(TypeError, match="config is SimpleNamespace"):
        Schedule.from_config(SimpleNamespace(config=3))
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        Schedule.from_config(tmp_path / "nothing_here")
    with pytest.raises(TypeError, match=r"steps is 2\.5"):
        Schedule.from_config(DDIM).table(2.5)


def test_thresholding_needs_a_batch():
    case = Case({"_class_name": "DDPMScheduler", "thresholding": True}, 3, {})
    with pytest.raises(ValueError, match="thresholding needs a batch axis"):
        ours.scan(case, jnp.ones(4), jnp.ones((3, 4)))
