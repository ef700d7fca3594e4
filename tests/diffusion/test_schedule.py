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
from tests.diffusion.cases import CASES, FIRST, NOISE, PARALLEL, kept
from tests.diffusion.published import FLUX, PUBLISHED

DDIM = {"_class_name": "DDIMScheduler", "clip_sample": False, "steps_offset": 1}
OF = Schedule.from_config


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
WALKED = (
    "dpm solver_type=midpoint, algorithm_type=sde-dpmsolver++",
    "euler prediction_type=v_prediction",
    "ddpm clip_sample=True, clip_sample_range=0.8, prediction_type=v_prediction",
    "ddpm variance_type=learned_range, steps_offset=1, clip_sample=True",
)


def scanned(case, x):
    """The last sample, in jax."""
    table, noise = case.schedule().table(case.steps), jnp.asarray(NOISE[: case.steps], x.dtype)
    step = table.step(ours.in_jax(case))
    inputs = table.inputs(x.dtype) | {"noise": noise}
    last, _ = jax.lax.scan(lambda state, at: (step(state, at), None), table.begin(x), inputs)
    return last["x"]


@pytest.mark.parametrize("name", WALKED)
def test_steps_work_within_jit_vmap_and_grad_and_keep_a_low_precision(name):
    case = CASES[name]
    first, expected = case.schedule().init_noise_sigma(case.steps) * FIRST, ours.walk(case)[-1]

    def total(x):
        value = jax.vmap(partial(scanned, case))(x)
        return value.sum(), value

    xs = jnp.stack([first, 2 * first])
    (_, value), slope = jax.jit(jax.value_and_grad(total, has_aux=True))(xs)
    np.testing.assert_allclose(value[0], expected, rtol=1e-10, atol=1e-12)
    assert np.isfinite(slope).all()
    assert np.abs(slope).max() > 0
    for dtype in (jnp.float32, jnp.bfloat16):
        found = scanned(case, jnp.asarray(first, dtype))
        assert found.dtype == dtype
        error = np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max()
        assert error < 30 * jnp.finfo(dtype).eps


def test_thresholding_in_low_precision_and_its_derivative():
    correct = partial(threshold, ratio=0.5, largest=1.5)
    clean = jnp.array([[0.5, -1.25, 3.0], [0.1, 0.2, -0.4]])
    # The medians of the sizes are 1.25 and 0.2, which counts as 1.
    np.testing.assert_allclose(correct(clean), [[0.4, -1.0, 1.0], [0.1, 0.2, -0.4]])
    assert correct(clean.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    slope = jax.jit(jax.grad(lambda clean: correct(clean)[0, 0]))(clean)
    np.testing.assert_allclose(slope, [[1 / 1.25, 0.5 / 1.25**2, 0.0], [0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="thresholding needs a batch axis"):
        correct(jnp.ones(4))


def test_an_output_of_another_precision_leaves_the_state_as_it_is():
    table = OF(DDIM).table(4)
    at = jax.tree.map(lambda column: column[0], table.inputs(jnp.float32))
    moved = table.advance({"x": jnp.ones((2, 3), jnp.float32)}, jnp.ones((2, 3), jnp.bfloat16), at)
    assert moved["x"].dtype == jnp.float32


@pytest.mark.parametrize(
    "name", ["ddim eta=0.7", "euler prediction_type=sample", "plms prediction_type=v_prediction"]
)
def test_linear_part_is_the_derivative_with_the_output_held(name):
    case = CASES[name]
    table = case.schedule().table(case.steps)
    inputs = table.inputs(jnp.float64) | {"noise": jnp.zeros((table.steps, 1, 1))}

    def moved(x, at):
        state = jax.tree.map(jnp.zeros_like, table.begin(x)) | {"x": x}
        return table.advance(state, jnp.zeros((1, 1)), at)["x"][0, 0]

    slopes = jax.vmap(jax.grad(moved), in_axes=(None, 0))(jnp.full((1, 1), 1e-3), inputs)
    np.testing.assert_allclose(table.linear_part, slopes[:, 0, 0], rtol=1e-12)


def test_columns_that_are_nought_are_no_inputs():
    assert set(OF(DDIM).table(4).inputs(jnp.float32)) == {"time", "scale", "x"}
    assert set(OF(DDIM).table(4).inputs(jnp.float32)["x"]) == {"x", "m"}
    low = OF(DDIM).table(4).inputs(jnp.bfloat16)  # where most coefficients would be 1
    assert {leaf.dtype for leaf in jax.tree.leaves(low)} == {np.dtype("float32"), np.dtype("int32")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_taken_as_it_is(name):
    """With one warning, which lists the fields of other schedulers, and no others."""
    config, others, options = PUBLISHED[name]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        schedule = OF(config, **options)
    assert len(said) == bool(others)
    if said:
        assert set(re.findall(r"(\w+)=", str(said[0].message))) == others
        assert said[0].filename == __file__
    read = {name: value for name, value in config.items() if name not in others}
    assert schedule == OF(read, **options)
    assert schedule.table(10).is_finite


@pytest.mark.parametrize("where", ["scheduler_config.json", "scheduler/scheduler_config.json"])
def test_a_schedule_is_read_from_a_file_or_a_folder(tmp_path, where):
    file = tmp_path / where
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(DDIM))
    for path in (tmp_path, str(tmp_path), file):
        assert OF(path) == OF(DDIM)


def test_a_scheduler_object_is_read_by_the_parameters_of_its_class():
    class DDIMScheduler:
        def __init__(self, clip_sample=True, steps_offset=0):
            own = {"clip_sample": clip_sample, "steps_offset": steps_offset}
            self.config = own | {"skip_prk_steps": True}

    assert OF(DDIMScheduler(False, 1)) == OF(DDIM)


def test_a_schedule_can_be_hashed_and_tells_what_is_not_default():
    schedule = OF(DDIM | {"trained_betas": np.full(1000, 0.01)}, eta=0.5)
    assert schedule == OF(DDIM | {"trained_betas": [0.01] * 1000}, eta=0.5)
    assert len({schedule, OF(DDIM), OF(DDIM)}) == 2
    shown = "Schedule(DDIMScheduler, steps_offset=1, clip_sample=False, eta=0.5)"
    assert repr(OF(DDIM, eta=0.5)) == shown


def test_trailing_times_are_as_many_as_the_steps():
    schedule = OF(DDIM | {"timestep_spacing": "trailing"})
    for steps in (61, 103, 998, 1000):  # where rounding errors make one more of some of them
        time = schedule.table(steps).time
        assert (len(time), time[0]) == (steps, 999)
        assert time[-1] >= 0


def test_the_shift_of_flux_follows_from_the_size_of_the_image():
    """Linear in the number of tokens: 0.5 at 256, and 1.15 at 4096."""
    sigmas = np.linspace(1, 1 / 8, 8)
    for tokens, mu in ((256, 0.5), (4096, 1.15), (2176, 0.825)):
        schedule = OF(FLUX, image_seq_len=tokens, sigmas=sigmas)
        np.testing.assert_allclose(dict(schedule.config)["mu"], mu, rtol=1e-12)
        expected = 1000 * np.exp(mu) / (np.exp(mu) + 1 / sigmas - 1)
        np.testing.assert_allclose(schedule.table(8).time, expected, rtol=1e-6)


FLOW, UNIPC, DPM, PNDM, DDPM = (
    f"{name}Scheduler"
    for name in ("FlowMatchEulerDiscrete", "UniPCMultistep", "DPMSolverMultistep", "PNDM", "DDPM")
)
LEAST, DYNAMIC = {"final_sigmas_type": "sigma_min"}, {"use_dynamic_shifting": True}
ZERO_SNR = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
RAMPS = {"use_karras_sigmas": True, "use_exponential_sigmas": True}
# Fields of a configuration of DDIM, or of another class, options, and what the error says.
BAD = [
    (
        "KDPM2DiscreteScheduler",
        {},
        {},
        r"expected one of \['DDIM.*; take HeunDiscreteScheduler, for",
    ),
    ("PNDScheduler", {}, {}, "did you mean 'PNDMScheduler'"),
    (None, {}, {}, "_class_name is None"),
    ("DDIM", {"step_offset": 1}, {}, "step_offset=1 is not a field .* did you mean 'steps_offset'"),
    ("DDIM", {"beta_schedule": "sigmoid"}, {}, "beta_schedule='sigmoid' is not .*scaled_linear"),
    ("DDIM", {"clip_sample": 1}, {}, r"clip_sample=1 is not supported.*\[True, False"),
    ("DDIM", {"clip_sample_range": "1"}, {}, "clip_sample_range='1' is not .*expected a number"),
    ("DDIM", {"num_train_timesteps": 0}, {}, "num_train_timesteps=0 is not .*an integer >= 1"),
    ("DDIM", {"steps_offset": [1]}, {}, r"steps_offset=\[1\] is not"),
    ("DDIM", {"trained_betas": [0.1, 0.2]}, {}, "trained_betas has 2 entries, expected .*=1000"),
    ("DDIM", {"beta_end": 2.0}, {}, "the betas are from 0.0001 to 2, expected numbers from 0 to 1"),
    ("DDIM", {"trained_betas": "no"}, {}, "trained_betas='no' is not .*a list of numbers"),
    ("DDIM", {"steps_offset": 7}, {"steps": 1000}, "steps_offset=7 moves the first .* time 1006"),
    ("DDIM", {}, {"steps": 1001}, "steps is 1001, expected at most num_train_timesteps=1000"),
    ("DDIM", {}, {"steps": 0}, r"steps is 0, .*an integer >= 1"),
    ("DDIM", {}, {"eta": -1}, "eta=-1 is not .*expected a number >= 0"),
    ("DDIM", {}, {"eta": "much"}, "eta='much' is not .*expected a number >= 0"),
    ("DDIM", {}, {"eta": 9}, r"Schedule\(DDIM.*, eta=9\) has coefficients that are not finite"),
    ("DDIM", {}, {"mu": 0.5}, "mu is 0.5, but DDIMScheduler takes none: expected None, or one of"),
    ("DDIM", {}, {"image_seq_len": 64}, "image_seq_len is 64, but DDIMScheduler takes none"),
    (DDPM, ZERO_SNR, {}, "prediction_type='epsilon' with rescale_betas_zero_snr=True"),
    (DDPM, {}, {"eta": 0.5}, "eta is 0.5, but DDPMScheduler takes none: expected 0"),
    (DDPM, {"dynamic_thresholding_ratio": 99}, {}, "a number >= 0 and <= 1"),
    (DDPM, {"variance_type": "learnt"}, {}, "variance_type='learnt' is not .*'learned_range'"),
    (PNDM, {}, {"steps": 3}, "steps is 3, expected at least 4, or skip_prk_steps=True"),
    ("LCMScheduler", {}, {"steps": 51}, "at most original_inference_steps=50"),
    (UNIPC, {"predict_x0": False}, {}, "predict_x0=False with final_sigmas"),
    (UNIPC, {}, {"steps": 1000}, "not finite for steps=1000: some of its times"),
    (UNIPC, {"shift_terminal": 0.1}, {}, "shift_terminal needs use_flow_sigmas"),
    (UNIPC, {}, {"sigmas": [1.0]}, "use_flow_sigmas is False"),
    ("EulerDiscreteScheduler", RAMPS, {}, "karras_sigmas and use_exponential_sigmas are True"),
    (DPM, {"solver_order": 4}, {}, "solver_order=4 is not supported.*>= 1 and <= 3"),
    (DPM, {"algorithm_type": "dpmsolver"}, {}, r"='sigma_min', or algorithm_type='dpmsolver\+\+'"),
    (DPM, {"algorithm_type": "sde-dpmsolver", "solver_order": 3} | LEAST, {}, "has no third order"),
    (DPM, {"prediction_type": "flow_prediction"}, {}, "needs use_flow_sigmas=True"),
    (
        DPM,
        {"lambda_min_clipped": -3.0, "timestep_spacing": "trailing"},
        {},
        "lambda_min_clipped=-3.0 with timestep_spacing='trailing' leaves 8 of 10 steps",
    ),
    (FLOW, DYNAMIC, {}, "the shift depends on the image; expected image_seq_len"),
    (FLOW, DYNAMIC, {"mu": 0.5, "image_seq_len": 64}, "mu and image_seq_len are given"),
    (
        FLOW,
        DYNAMIC,
        {"image_seq_len": 0},
        "image_seq_len is 0, expected None or an integer >= 1 .number of tokens",
    ),
    (FLOW, {}, {"mu": 0.5}, "mu is 0.5, but use_dynamic_shifting is False"),
    (FLOW, {}, {"sigmas": [1.0, 0.5]}, "steps is 10, but the schedule has 2 sigmas of its own"),
]


@pytest.mark.parametrize(("scheduler", "fields", "options", "message"), BAD)
def test_what_is_not_supported_is_named(scheduler, fields, options, message):
    name, options = "DDIMScheduler" if scheduler == "DDIM" else scheduler, dict(options)
    steps = options.pop("steps", 10)
    with pytest.raises(ValueError, match=message):
        OF({"_class_name": name, **fields}, **options).table(steps)


def test_what_is_no_configuration_is_named(tmp_path):
    with pytest.raises(TypeError, match="config is int, expected a dict, a path, or a scheduler"):
        OF(3)
    with pytest.raises(TypeError, match="config is SimpleNamespace"):
        OF(SimpleNamespace(config=3))
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        OF(tmp_path / "nothing_here")
    with pytest.raises(TypeError, match=r"steps is 2\.5"):
        OF(DDIM).table(2.5)
