"""Our text-conditional UNet beside diffusers' own; and the weights of published networks."""

import dataclasses
import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("safetensors")

import diffusers
import torch

from deeppcr.diffusion import Schedule, guided, load_model, sample
from deeppcr.diffusion.load import Stored
from deeppcr.diffusion.models import MODELS
from deeppcr.diffusion.models.text_unet.config import TextUNetConfig
from tests.diffusion.networks import assert_close, quick, with_random_vectors
from tests.diffusion.published import NETWORKS

BATCH, SIDE, TOKENS, WIDTH = 3, 8, 5, 12
SMALL = {
    "sample_size": SIDE,
    "block_out_channels": (8, 16),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "attention_head_dim": 2,
    "cross_attention_dim": WIDTH,
}
# Each value of each option once: to compile a network takes a second or two.
CASES = {
    "as Stable Diffusion 1, other times": {
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "time_embedding_dim": 24,
        "layers_per_block": 2,
        "mid_block_scale_factor": 1.5,
        "act_fn": "gelu",
        "dropout": 0.5,
    },
    "as Stable Diffusion 2, scale and shift, centred": {
        "attention_head_dim": (2, 4),
        "use_linear_projection": True,
        "upcast_attention": True,
        "resnet_time_scale_shift": "scale_shift",
        "center_input_sample": True,
        "downsample_padding": 0,
        "norm_eps": 1e-6,
    },
    "as SDXL": {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 4,
        "projection_class_embeddings_input_dim": 34,
        "transformer_layers_per_block": (1, 3),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "use_linear_projection": True,
    },
    "nothing in the middle, heads that do not fill the channels": {
        "mid_block_type": None,
        "in_channels": 3,
        "out_channels": 2,
        "attention_head_dim": 3,
    },
}

ONE_LEVEL = {
    "block_out_channels": (8,),
    "down_block_types": ("CrossAttnDownBlock2D",),
    "mid_block_type": None,
    "up_block_types": ("CrossAttnUpBlock2D",),
    "transformer_layers_per_block": 2,
}


def theirs(options):
    """A network of diffusers with random weights, also of norms and biases."""
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(**(SMALL | options)).eval()
    return with_random_vectors(model)


def given(model, seed=1):
    """Images, and what a text has."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((BATCH, model.config.in_channels, SIDE, SIDE), np.float32)
    text = random.standard_normal((BATCH, TOKENS, WIDTH), np.float32)
    if model.config.addition_embed_type is None:
        return x, (text,)
    pooled = random.standard_normal((BATCH, 34 - 6 * 4), np.float32)
    return x, (text, pooled, np.tile([1024, 512, 0, 3, 1024, 1024], (BATCH, 1)))


def predicted(model, x, t, text, *added):
    names = ("text_embeds", "time_ids")
    kwargs = {name: torch.as_tensor(each) for name, each in zip(names, added, strict=False)}
    with torch.no_grad():
        return model(
            *map(torch.as_tensor, (x, t, text)), added_cond_kwargs=kwargs or None
        ).sample.numpy()


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_option_predicts_as_diffusers_does(options, tmp_path):
    model = theirs(options)
    model.save_pretrained(tmp_path)
    (x, condition), t = given(model), np.array([1, 500, 999])
    ours = quick(load_model(tmp_path))(x, t, *condition)
    assert ours.dtype == jnp.float32
    assert_close(np.asarray(ours), predicted(model, x, t, *condition))


def test_fields_and_their_defaults_are_those_of_diffusers():
    ours = {field.name: field.default for field in dataclasses.fields(TextUNetConfig)}
    fields = inspect.signature(diffusers.UNet2DConditionModel).parameters.values()
    assert ours == {field.name: field.default for field in fields}


# What diffusers says of its own use of torch and numpy.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_guided_latents_are_those_of_the_loop(tmp_path):
    """That of the pipelines of Stable Diffusion and SDXL, which guide by an empty text."""
    model, scale, steps = theirs(CASES["as SDXL"] | ONE_LEVEL), 5.0, 6
    model.save_pretrained(tmp_path / "unet")
    scheduler = diffusers.DPMSolverMultistepScheduler(beta_schedule="scaled_linear")
    scheduler.save_pretrained(tmp_path / "scheduler")
    scheduler.set_timesteps(steps)
    start, condition = given(model)
    none = given(model, seed=2)[1]
    x = torch.from_numpy(start)
    for t in scheduler.timesteps:
        with_it, without = (
            torch.from_numpy(predicted(model, x, t, *each)) for each in (condition, none)
        )
        x = scheduler.step(without + scale * (with_it - without), t, x).prev_sample
    unet, schedule = load_model(tmp_path), Schedule.from_config(tmp_path)
    model = guided(lambda x, t, condition: unet(x, t, *condition), scale)
    found = quick(
        lambda x: sample(model, schedule, x, steps=steps, args=(condition, none), method="picard")
    )(start)
    assert found.converged
    assert_close(np.asarray(found.value), x.numpy())


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_weights_of_published_networks_have_their_names_and_shapes(config):
    network = MODELS[config["_class_name"]]
    ours = network.config.read(config)
    kind = getattr(diffusers, ours.NAME)
    known = set(inspect.signature(kind).parameters)
    with torch.device("meta"):
        model = kind(**{name: value for name, value in config.items() if name in known})
    parameters = nnx.state(nnx.eval_shape(lambda: network.build(ours)), nnx.Param)
    found = {
        name: stored.shape
        for path, weight in nnx.to_flat_state(parameters)
        for stored in [Stored.of(path, weight.shape, ours.STACKED)]
        for name in stored.names
    }
    assert found == {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
