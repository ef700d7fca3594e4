"""Our diffusion transformer beside diffusers' own, and all of its pipeline but the autoencoder."""

import dataclasses
import inspect
import json
from types import SimpleNamespace
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
from diffusers.pipelines.dit import pipeline_dit

from deeppcr.diffusion import Schedule, guided, load_model, sample
from deeppcr.diffusion.load import Stored
from deeppcr.diffusion.models.dit.config import DiTConfig
from deeppcr.diffusion.models.feed_forward import ACTIVATIONS
from deeppcr.diffusion.sampler import step_noise
from tests.diffusion.networks import quick, with_random_vectors

CLOSE = 1e-5
BATCH, CLASSES = 3, 1000
SMALL = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 2,
    "sample_size": 8,
    "num_embeds_ada_norm": CLASSES,
}
# Each value of each option once: to compile a network takes a second or two.
CASES = {
    "as by default": {},
    "a learned variance": {"out_channels": 8, "num_layers": 3, "activation_fn": "gelu"},
    "other numbers of channels": {
        "in_channels": 1,
        "out_channels": 3,
        "num_layers": 1,
        "activation_fn": "geglu",
    },
    "heads, and norms with weights": {
        "num_attention_heads": 3,
        "attention_head_dim": 4,
        "norm_num_groups": 7,
        "norm_elementwise_affine": True,
        "norm_eps": 1e-2,
        "activation_fn": "geglu-approximate",
    },
    "patches of one pixel, no bias": {
        "patch_size": 1,
        "sample_size": 5,
        "attention_bias": False,
        "dropout": 0.5,
        "activation_fn": "swiglu",
    },
    "patches of four pixels, attention in float32": {
        "patch_size": 4,
        "sample_size": 16,
        "upcast_attention": True,
        "activation_fn": "linear-silu",
    },
}


def theirs(options, dtype=torch.float32):
    """A network of diffusers with random weights, also of norms and biases."""
    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(**(SMALL | options)).eval()
    return with_random_vectors(model).to(dtype)


def images(model, side=None):
    side = side or model.config.sample_size
    return np.random.default_rng(1).standard_normal(
        (BATCH, model.config.in_channels, side, side), np.float32
    )


def predicted(model, x, t, labels):
    with torch.no_grad():
        return model(*map(torch.as_tensor, (x, t, labels))).sample.numpy()


def assert_close(ours, theirs, close=CLOSE):
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= close * max(1, np.abs(theirs).max())


T, LABELS = np.array([1, 500, 999]), np.array([0, 7, CLASSES])


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_option_predicts_as_diffusers_does(options, tmp_path):
    model = theirs(options)
    model.save_pretrained(tmp_path)
    x = images(model)
    ours = quick(load_model(tmp_path))(x, T, LABELS)
    assert ours.dtype == jnp.float32
    assert_close(np.asarray(ours), predicted(model, x, T, LABELS))


def test_every_activation_is_compared():
    default = DiTConfig().activation_fn
    assert {case.get("activation_fn", default) for case in CASES.values()} == {*ACTIVATIONS}


def test_fields_and_their_defaults_are_those_of_diffusers():
    ours = {field.name: field.default for field in dataclasses.fields(DiTConfig)}
    fields = inspect.signature(diffusers.DiTTransformer2DModel).parameters.values()
    assert ours == {field.name: field.default for field in fields}


def test_another_size_of_images_one_time_and_the_weights(tmp_path):
    """Positions are then between those of training."""
    model = theirs({})
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    dit, x = load_model(tmp_path), images(model, side=12)
    ours = quick(dit)(x, 7, 3)
    assert_close(np.asarray(ours), predicted(model, x, np.full(BATCH, 7), np.full(BATCH, 3)))
    known = model.state_dict()
    for path, weight in nnx.to_flat_state(nnx.state(dit)):
        names, _, is_stacked = Stored.of(path, weight.shape, dit.config.STACKED)
        for name, layer in zip(names, weight[...] if is_stacked else [weight[...]], strict=True):
            np.testing.assert_array_equal(layer, known.pop(name).numpy())
    assert not known


def test_double_precision(tmp_path):
    model = theirs({}, torch.float64)
    model.save_pretrained(tmp_path)
    x, t = images(model).astype(np.float64), np.zeros(BATCH, int)  # other angles are float32
    ours = quick(load_model(tmp_path, dtype="float64"))(x, t, LABELS)
    close = 1e-6  # positions are float32 in diffusers
    assert_close(np.asarray(ours), predicted(model, x, t, LABELS), close)


def test_files_of_the_class_that_it_was(tmp_path):
    """Those published, which diffusers reads as ours."""
    model = theirs({})
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    older = {
        "_class_name": "Transformer2DModel",
        "cross_attention_dim": None,
        "num_vector_embeds": None,
        "only_cross_attention": False,
        "use_linear_projection": False,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | older))
    again = diffusers.models.Transformer2DModel.from_pretrained(tmp_path)
    assert type(again) is diffusers.DiTTransformer2DModel
    assert load_model(tmp_path).config == DiTConfig(**SMALL)


# What diffusers says of its own use of torch and numpy.
pipelines = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
STEPS, SCALE = 6, 4.0
CHOSEN = [1, 207, 999]
SIDE = 4
NOISE = jax.random.normal(jax.random.key(1), (BATCH, 4, SIDE, SIDE), jnp.float32)
KEY = jax.random.key(0)


def latents(pipeline, scale):
    """What the pipeline makes of our noise, before the autoencoder."""
    found = []

    def decode(scaled):
        found.append(scaled * pipeline.vae.config.scaling_factor)
        return SimpleNamespace(sample=scaled[:, :3])

    pipeline.set_progress_bar_config(disable=True)
    start = mock.Mock(return_value=torch.from_numpy(np.array(NOISE)))
    with (
        mock.patch.object(pipeline_dit, "randn_tensor", start),
        mock.patch.object(pipeline.vae, "decode", decode),
    ):
        pipeline(CHOSEN, guidance_scale=scale, num_inference_steps=STEPS, output_type="np")
    return found[0].numpy()


def autoencoder():
    return diffusers.AutoencoderKL(block_out_channels=(4,), norm_num_groups=2)


@pipelines
@pytest.mark.parametrize(
    ("name", "options", "out_channels", "scale", "method"),
    [
        ("DDIMScheduler", {"clip_sample": False}, 8, SCALE, "newton"),
        ("DDIMScheduler", {"clip_sample": False}, 4, 1.0, "sequential"),
        ("DPMSolverMultistepScheduler", {}, 8, SCALE, "sequential"),
        ("DPMSolverMultistepScheduler", {}, 4, SCALE, "picard"),
    ],
)
def test_latents_are_those_of_the_pipeline(name, options, out_channels, scale, method, tmp_path):
    """A variance that the pipeline leaves out is left out here."""
    pipeline = diffusers.DiTPipeline(
        transformer=theirs({"sample_size": SIDE, "out_channels": out_channels}),
        vae=autoencoder(),
        scheduler=getattr(diffusers, name)(**options),
    )
    pipeline.save_pretrained(tmp_path)
    dit, schedule = load_model(tmp_path), Schedule.from_config(tmp_path)
    labels = jnp.array(CHOSEN)
    args = (labels,) if scale == 1 else (labels, jnp.full_like(labels, dit.null_label))
    model = dit if scale == 1 else guided(dit, scale)
    found = quick(lambda x: sample(model, schedule, x, steps=STEPS, args=args, method=method))(
        NOISE
    )
    assert_close(np.asarray(found.value), latents(pipeline, scale))
    assert found.converged


@pipelines
def test_a_learned_variance(tmp_path):
    """The loop of diffusers' schedulers; guidance leaves the variance as it is for the class."""
    model = theirs({"sample_size": SIDE, "out_channels": 8})
    model.save_pretrained(tmp_path / "transformer")
    scheduler = diffusers.DDPMScheduler(variance_type="learned_range", clip_sample=False)
    scheduler.save_pretrained(tmp_path / "scheduler")
    scheduler.set_timesteps(STEPS)
    x, none = torch.from_numpy(np.array(NOISE)), np.full(BATCH, CLASSES)
    for t, noise in zip(scheduler.timesteps, step_noise(KEY, STEPS, NOISE), strict=True):
        ts = np.full(BATCH, int(t))
        with_it, without = (
            torch.as_tensor(predicted(model, x, ts, each)) for each in (CHOSEN, none)
        )
        output = torch.cat(
            [without[:, :4] + SCALE * (with_it[:, :4] - without[:, :4]), with_it[:, 4:]], dim=1
        )
        with mock.patch.object(
            diffusers.schedulers.scheduling_ddpm,
            "randn_tensor",
            lambda *_, noise=noise, **__: torch.from_numpy(np.array(noise)),
        ):
            x = scheduler.step(output, t, x).prev_sample
    dit, schedule = load_model(tmp_path), Schedule.from_config(tmp_path)
    args = jnp.array(CHOSEN), jnp.asarray(none)
    found = quick(
        lambda x: sample(guided(dit, SCALE), schedule, x, steps=STEPS, args=args, key=KEY)
    )(NOISE)
    assert_close(np.asarray(found.value), x.numpy())
