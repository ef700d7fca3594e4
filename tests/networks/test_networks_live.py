"""UNets beside diffusers' own, with the same random weights; and its pipelines, end to end."""

import inspect
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("safetensors")

import diffusers
import torch
from diffusers.pipelines.ddim import pipeline_ddim
from diffusers.pipelines.ddpm import pipeline_ddpm
from diffusers.schedulers import scheduling_ddpm

from deeppcr.diffusion import Schedule, sample
from deeppcr.diffusion.sampler import step_noise
from experiments.networks import load_model
from experiments.networks.load import stored
from experiments.networks.unet import ACTIVATIONS, FIELDS
from tests.networks.test_networks import quick
from tests.networks.theirs import BATCH, CASES, UNET, given, predicted, theirs

# What diffusers says of its own use of torch and numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def assert_close(ours, theirs, close=1e-5):
    assert ours.shape == theirs.shape
    assert np.abs(np.asarray(ours) - theirs).max() <= close * max(1, np.abs(theirs).max())


@pytest.mark.parametrize("name", CASES)
def test_every_option_predicts_as_diffusers_does(name, tmp_path):
    model = theirs(name)
    model.save_pretrained(tmp_path)
    (x, conditions), t = given(model), np.array([1, 500, 999])
    ours = quick(load_model(tmp_path))(x, t, *conditions)
    assert ours.dtype == jnp.float32
    assert_close(ours, predicted(model, x, t, *conditions))


def test_every_block_and_activation_is_compared():
    known = {value for case in [UNET, *CASES.values()] for value in case.values()}
    blocks = {block for value in known if isinstance(value, tuple) for block in value}
    names = [field.expected for name, field in FIELDS.items() if name.endswith("block_types")]
    assert {block for each in names for block in each.split("'")[1::2]} <= blocks
    assert {*ACTIVATIONS} - {"silu", "swish"} < known


def test_fields_and_their_defaults_are_those_of_diffusers():
    fields = inspect.signature(diffusers.UNet2DModel).parameters.values()
    ours = {field: each.default for field, each in FIELDS.items()}
    assert ours == {field.name: field.default for field in fields}


def test_one_time_for_all_images_of_another_size(tmp_path):
    model = theirs("unet", {})
    model.save_pretrained(tmp_path)
    x, conditions = given(model, side=12)
    expected = predicted(model, x, np.full(BATCH, 7), *conditions)
    assert_close(quick(load_model(tmp_path))(x, 7, *conditions), expected)


def test_double_precision(tmp_path):
    """Angles of other times are float32."""
    model = theirs("unet", {}).double()
    model.save_pretrained(tmp_path)
    (x, conditions), t = given(model), np.zeros(BATCH, int)
    with jax.numpy_dtype_promotion("standard"):  # flax's norms combine float64 and float32
        ours = quick(load_model(tmp_path, "float64"))(x.astype(np.float64), t, *conditions)
    assert_close(ours, predicted(model, x.astype(np.float64), t, *conditions), 1e-12)


def assert_same_weights(network, model):
    """Name by name, exactly."""
    known = {name: weight.float().numpy() for name, weight in model.state_dict().items()}
    for path, leaf in nnx.to_flat_state(nnx.state(network)):
        name, _ = stored(path, leaf)
        weight = leaf[...]
        assert weight.dtype == np.float32
        axes = {2: (1, 0), 4: (3, 2, 0, 1)}[weight.ndim] if path[-1] == "kernel" else None
        weight = weight.transpose(axes) if axes else weight
        np.testing.assert_array_equal(weight, known.pop(name))
    assert not known


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_files_of_other_dtypes_in_the_folder_of_a_pipeline(dtype, tmp_path):
    model = theirs("unet", {}).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "unet")
    assert_same_weights(load_model(tmp_path), model)


STEPS, KEY = 6, jax.random.key(0)
ONE_LEVEL = {"block_out_channels": (4,), "mid_block_type": None}


def in_turn(*arrays):
    """In place of random numbers: these, one after another."""
    left = iter(arrays)
    return lambda shape, **_: torch.from_numpy(np.array(next(left))).reshape(shape)


@pytest.mark.parametrize(("name", "method"), [("DDPM", "picard"), ("DDIM", "newton")])
def test_images_are_those_of_the_pipeline(name, method, tmp_path):
    one_level = ONE_LEVEL | {
        "down_block_types": ("AttnDownBlock2D",),
        "up_block_types": ("AttnUpBlock2D",),
    }
    unet = theirs("unet", one_level, sample_size=4, in_channels=1, out_channels=1)
    scheduler = getattr(diffusers, f"{name}Scheduler")()
    pipeline = getattr(diffusers, f"{name}Pipeline")(unet=unet, scheduler=scheduler)
    pipeline.save_pretrained(tmp_path)
    pipeline.set_progress_bar_config(disable=True)
    start = jax.random.normal(jax.random.key(1), (2, 1, 4, 4), jnp.float32)
    noise = in_turn(*step_noise(KEY, STEPS, start))
    with (
        mock.patch.object(pipeline_ddpm, "randn_tensor", in_turn(start)),
        mock.patch.object(pipeline_ddim, "randn_tensor", in_turn(start)),
        mock.patch.object(scheduling_ddpm, "randn_tensor", noise),
    ):
        images = pipeline(batch_size=2, num_inference_steps=STEPS, output_type="np").images
    model, schedule = load_model(tmp_path), Schedule.from_config(tmp_path)
    found = quick(lambda x: sample(model, schedule, x, steps=STEPS, key=KEY, method=method))(start)
    expected = 2 * images.transpose(0, 3, 1, 2) - 1
    np.testing.assert_allclose(jnp.clip(found.value, -1, 1), expected, rtol=0, atol=1e-4)
    assert np.abs(found.value).max() > 0.5  # images that are not grey
    assert 0 < found.stats.iterations <= STEPS
