"""End to end: the images of diffusers' pipelines, from their folder and the same noise."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("safetensors")

import diffusers
import torch
from diffusers.pipelines.ddim import pipeline_ddim
from diffusers.pipelines.ddpm import pipeline_ddpm
from diffusers.schedulers import scheduling_ddpm

from deeppcr.diffusion import Schedule, load_unet, sample
from deeppcr.diffusion.sampler import step_noise
from tests.diffusion.networks import quick

STEPS, SHAPE = 10, (2, 1, 4, 4)
KEY = jax.random.key(0)
NOISE = jax.random.normal(jax.random.key(1), SHAPE, jnp.float32)
# What diffusers says of its own use of torch and numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def network():
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=SHAPE[-1],
        in_channels=1,
        out_channels=1,
        block_out_channels=(4,),
        down_block_types=("AttnDownBlock2D",),
        mid_block_type=None,
        up_block_types=("AttnUpBlock2D",),
        layers_per_block=1,
        norm_num_groups=2,
        attention_head_dim=4,
    )


def given(*arrays):
    """In place of random numbers: these, one after another."""
    left = iter(arrays)
    return lambda shape, **_: torch.from_numpy(np.array(next(left))).reshape(shape)


def images(pipeline):
    """What the pipeline makes of our noise: [batch, channels, height, width] from -1 to 1."""
    pipeline.set_progress_bar_config(disable=True)
    noise = given(*step_noise(KEY, STEPS, NOISE))
    with (
        mock.patch.object(pipeline_ddpm, "randn_tensor", given(NOISE)),
        mock.patch.object(pipeline_ddim, "randn_tensor", given(NOISE)),
        mock.patch.object(scheduling_ddpm, "randn_tensor", noise),
    ):
        found = pipeline(batch_size=SHAPE[0], num_inference_steps=STEPS, output_type="np").images
    return 2 * found.transpose(0, 3, 1, 2) - 1


@pytest.mark.parametrize(("name", "method"), [("DDPM", "picard"), ("DDIM", "newton")])
def test_images_are_those_of_the_pipeline(name, method, tmp_path):
    scheduler = getattr(diffusers, f"{name}Scheduler")()
    pipeline = getattr(diffusers, f"{name}Pipeline")(unet=network(), scheduler=scheduler)
    pipeline.save_pretrained(tmp_path)
    unet, schedule = load_unet(tmp_path), Schedule.from_config(tmp_path)
    found = quick(lambda x: sample(unet, schedule, x, steps=STEPS, key=KEY, method=method))(NOISE)
    np.testing.assert_allclose(jnp.clip(found.value, -1, 1), images(pipeline), rtol=0, atol=1e-4)
    assert np.abs(found.value).max() > 0.5  # images that are not grey
    assert 0 < found.stats.iterations <= STEPS
