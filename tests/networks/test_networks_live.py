"""Networks beside diffusers' own, with the same random weights; and its pipelines, end to end."""

import inspect
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
from diffusers.pipelines.ddim import pipeline_ddim
from diffusers.pipelines.ddpm import pipeline_ddpm
from diffusers.pipelines.dit import pipeline_dit
from diffusers.schedulers import scheduling_ddpm
from safetensors.torch import load_file, save_file

from deeppcr.diffusion import Schedule, guided, sample
from deeppcr.diffusion.sampler import step_noise
from experiments.networks import load_model
from experiments.networks.load import NETWORKS, OLD_NAMES, WEIGHTS, build, stored
from experiments.networks.unet import ACTIVATIONS
from tests.networks.published import PUBLISHED
from tests.networks.test_networks import quick

# What diffusers says of its own use of torch and numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

BATCH, SIDE, TOKENS, WIDTH, CLASSES = 3, 8, 5, 12, 1000
UNET = {
    "sample_size": SIDE,
    "block_out_channels": (8, 16),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "attention_head_dim": 4,
}
TEXT = UNET | {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "attention_head_dim": 2,
    "cross_attention_dim": WIDTH,
}
DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 2,
    "sample_size": SIDE,
    "num_embeds_ada_norm": CLASSES,
}
SMALL = {"UNet2DModel": UNET, "UNet2DConditionModel": TEXT, "DiTTransformer2DModel": DIT}
SDXL = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 34,
    "transformer_layers_per_block": (1, 3),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "use_linear_projection": True,
}
# Each value of each option once: to compile a network takes a second or two.
CASES = {
    "unet, deep, as trained on cifar": {
        "block_out_channels": (8, 8, 16),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 2,
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "downsample_padding": 0,
        "norm_eps": 1e-6,
    },
    "unet, attention above, one head, centred": {
        "down_block_types": ("AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D"),
        "attention_head_dim": None,
        "center_input_sample": True,
        "in_channels": 1,
        "out_channels": 2,
    },
    "unet, heads that do not fill the channels": {"attention_head_dim": 3, "act_fn": "gelu"},
    "unet, resampled by residual layers, scale and shift, fourier": {
        "down_block_types": ("AttnDownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "AttnUpBlock2D"),
        "downsample_type": "resnet",
        "upsample_type": "resnet",
        "resnet_time_scale_shift": "scale_shift",
        "time_embedding_type": "fourier",
        "act_fn": "mish",
    },
    "unet, blocks resampled by residual layers, no attention in the middle, classes": {
        "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("ResnetUpsampleBlock2D", "AttnUpBlock2D"),
        "add_attention": False,
        "mid_block_scale_factor": 1.5,
        "num_class_embeds": 10,
    },
    "unet, scale and shift, norm in the middle, another size of the embedding": {
        "resnet_time_scale_shift": "scale_shift",
        "attn_norm_num_groups": 8,
        "time_embedding_dim": 24,
    },
    "unet, nothing in the middle, odd channels": {
        "mid_block_type": None,
        "block_out_channels": (9, 18),
        "norm_num_groups": 3,
        "act_fn": "relu",
        "dropout": 0.5,
    },
    "text unet, as Stable Diffusion 1, other times": {
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "time_embedding_dim": 24,
        "layers_per_block": 2,
        "mid_block_scale_factor": 1.5,
        "act_fn": "gelu",
    },
    "text unet, as Stable Diffusion 2, scale and shift, centred": {
        "attention_head_dim": (2, 4),
        "use_linear_projection": True,
        "upcast_attention": True,
        "resnet_time_scale_shift": "scale_shift",
        "center_input_sample": True,
        "downsample_padding": 0,
        "norm_eps": 1e-6,
    },
    "text unet, as SDXL": SDXL,
    "text unet, nothing in the middle, heads that do not fill the channels": {
        "mid_block_type": None,
        "in_channels": 3,
        "out_channels": 2,
        "attention_head_dim": 3,
    },
    "dit": {},
    "dit, a learned variance": {"out_channels": 8, "num_layers": 3, "activation_fn": "gelu"},
    "dit, other numbers of channels": {
        "in_channels": 1,
        "out_channels": 3,
        "num_layers": 1,
        "activation_fn": "geglu",
    },
    "dit, heads, and norms with weights": {
        "num_attention_heads": 3,
        "attention_head_dim": 4,
        "norm_num_groups": 7,
        "norm_elementwise_affine": True,
        "norm_eps": 1e-2,
    },
    "dit, patches of one pixel, no bias": {
        "patch_size": 1,
        "sample_size": 5,
        "attention_bias": False,
        "dropout": 0.5,
    },
    "dit, patches of four pixels, attention in float32": {
        "patch_size": 4,
        "sample_size": 16,
        "upcast_attention": True,
    },
}


def theirs(name, options=None, **more):
    """A network of diffusers with random weights, also of norms and biases."""
    kinds = {"unet": 0, "text unet": 1, "dit": 2}
    kind = list(SMALL)[kinds[name.partition(",")[0]]]
    torch.manual_seed(0)
    options = SMALL[kind] | (CASES[name] if options is None else options) | more
    model = getattr(diffusers, kind)(**options).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight.ndim == 1 and weight_name != "time_proj.weight":
                weight += 0.2 * torch.randn(weight.shape)
    return model


def given(model, side=None, seed=1):
    """Images, and what the network reads besides the time."""
    random, config = np.random.default_rng(seed), model.config
    side = side or config.sample_size
    x = random.standard_normal((BATCH, config.in_channels, side, side), np.float32)
    if isinstance(model, diffusers.UNet2DConditionModel):
        text = random.standard_normal((BATCH, TOKENS, WIDTH), np.float32)
        if config.addition_embed_type is None:
            return x, (text,)
        pooled = random.standard_normal((BATCH, 34 - 6 * 4), np.float32)
        return x, (text, pooled, np.tile([1024, 512, 0, 3, 1024, 1024], (BATCH, 1)))
    if isinstance(model, diffusers.DiTTransformer2DModel):
        return x, (np.array([0, 7, CLASSES]),)
    return x, (() if config.num_class_embeds is None else (np.arange(BATCH),))


def predicted(model, x, t, *conditions):
    if isinstance(model, diffusers.UNet2DConditionModel):
        names = ("encoder_hidden_states", "text_embeds", "time_ids")
        kwargs = dict(zip(names, map(torch.as_tensor, conditions), strict=False))
        text = {"encoder_hidden_states": kwargs.pop("encoder_hidden_states")}
        kwargs = text | {"added_cond_kwargs": kwargs or None}
    else:
        kwargs = dict(zip(["class_labels"], map(torch.as_tensor, conditions), strict=False))
    with torch.no_grad():
        return model(torch.as_tensor(x), torch.as_tensor(t), **kwargs).sample.numpy()


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
    known = {value for case in [UNET, TEXT, *CASES.values()] for value in case.values()}
    blocks = {block for value in known if isinstance(value, tuple) for block in value}
    for fields, _ in NETWORKS.values():
        names = [field.expected for name, field in fields.items() if name.endswith("block_types")]
        assert {block for each in names for block in each.split("'")[1::2]} <= blocks
    assert {*ACTIVATIONS} - {"silu", "swish"} < known


@pytest.mark.parametrize("name", SMALL)
def test_fields_and_their_defaults_are_those_of_diffusers(name):
    fields = inspect.signature(getattr(diffusers, name)).parameters.values()
    ours = {field: each.default for field, each in NETWORKS[name][0].items()}
    assert ours == {field.name: field.default for field in fields}


@pytest.mark.parametrize("name", ["unet", "dit"])
def test_one_time_for_all_images_of_another_size(name, tmp_path):
    """Positions of a transformer are then between those of training."""
    model = theirs(name, {})
    model.save_pretrained(tmp_path)
    x, conditions = given(model, side=12)
    expected = predicted(model, x, np.full(BATCH, 7), *conditions)
    assert_close(quick(load_model(tmp_path))(x, 7, *conditions), expected)


@pytest.mark.parametrize(("name", "close"), [("unet", 1e-12), ("dit", 1e-6)])
def test_double_precision(name, close, tmp_path):
    """Positions are float32 in diffusers, and so are angles of other times."""
    model = theirs(name, {}).double()
    model.save_pretrained(tmp_path)
    (x, conditions), t = given(model), np.zeros(BATCH, int)
    with jax.numpy_dtype_promotion("standard"):  # flax's norms combine float64 and float32
        ours = quick(load_model(tmp_path, "float64"))(x.astype(np.float64), t, *conditions)
    assert_close(ours, predicted(model, x.astype(np.float64), t, *conditions), close)


def assert_same_weights(network, model):
    """Name by name, exactly."""
    known = {name: weight.float().numpy() for name, weight in model.state_dict().items()}
    for path, leaf in nnx.to_flat_state(nnx.state(network)):
        names = [name for name, _ in stored(path, leaf)]
        for name, weight in zip(names, leaf[...] if len(names) > 1 else [leaf[...]], strict=True):
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


@pytest.mark.parametrize("name", ["unet", "dit"])
def test_shards(name, tmp_path):
    model = theirs(name, {})
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_weights(load_model(tmp_path), model)


def test_old_names_of_weights(tmp_path):
    model = theirs("unet", {})
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    for old, new in OLD_NAMES.items():
        weights = {name.replace(f".{new}.", f".{old}."): weight for name, weight in weights.items()}
    assert any(".proj_attn." in name for name in weights)
    save_file(weights, tmp_path / WEIGHTS, metadata={"format": "pt"})
    assert_same_weights(load_model(tmp_path), diffusers.UNet2DModel.from_pretrained(tmp_path))
    assert_same_weights(load_model(tmp_path), model)


@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
def test_weights_of_published_networks_have_their_names_and_shapes(config):
    name = config["_class_name"]
    kind = getattr(diffusers, name if name in SMALL else "DiTTransformer2DModel")
    known = set(inspect.signature(kind).parameters)
    with torch.device("meta"):
        model = kind(**{name: value for name, value in config.items() if name in known})
    flat = nnx.to_flat_state(nnx.state(build(config), nnx.Param))
    found = dict(pair for leaf in flat for pair in stored(*leaf))
    assert found == {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


STEPS, SCALE, KEY = 6, 4.0, jax.random.key(0)


def in_turn(*arrays):
    """In place of random numbers: these, one after another."""
    left = iter(arrays)
    return lambda shape, **_: torch.from_numpy(np.array(next(left))).reshape(shape)


@pytest.mark.parametrize(("name", "method"), [("DDPM", "picard"), ("DDIM", "newton")])
def test_images_are_those_of_the_pipeline(name, method, tmp_path):
    one_level = {
        "block_out_channels": (4,),
        "down_block_types": ("AttnDownBlock2D",),
        "mid_block_type": None,
        "up_block_types": ("AttnUpBlock2D",),
        "norm_num_groups": 2,
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


@pytest.mark.parametrize(
    ("name", "options", "out_channels", "scale", "method"),
    [
        ("DDIMScheduler", {"clip_sample": False}, 8, SCALE, "newton"),
        ("DDIMScheduler", {"clip_sample": False}, 4, 1.0, "sequential"),
        ("DPMSolverMultistepScheduler", {}, 4, SCALE, "picard"),
    ],
)
def test_latents_are_those_of_the_pipeline(name, options, out_channels, scale, method, tmp_path):
    """A variance that the pipeline leaves out is left out here."""
    pipeline = diffusers.DiTPipeline(
        transformer=theirs("dit", {"sample_size": 4, "out_channels": out_channels}),
        vae=diffusers.AutoencoderKL(block_out_channels=(4,), norm_num_groups=2),
        scheduler=getattr(diffusers, name)(**options),
    )
    pipeline.save_pretrained(tmp_path)
    pipeline.set_progress_bar_config(disable=True)
    noise, chosen, latents = given(pipeline.transformer)[0], [1, 207, 999], []

    def decode(scaled):
        latents.append(scaled * pipeline.vae.config.scaling_factor)
        return SimpleNamespace(sample=scaled[:, :3])

    with (
        mock.patch.object(pipeline_dit, "randn_tensor", in_turn(noise)),
        mock.patch.object(pipeline.vae, "decode", decode),
    ):
        pipeline(chosen, guidance_scale=scale, num_inference_steps=STEPS, output_type="np")
    dit, schedule = load_model(tmp_path), Schedule.from_config(tmp_path)
    labels = jnp.array(chosen)
    args = (labels,) if scale == 1 else (labels, jnp.full_like(labels, dit.null_label))
    model = dit if scale == 1 else guided(dit, scale)
    found = quick(lambda x: sample(model, schedule, x, steps=STEPS, args=args, method=method))(
        noise
    )
    assert_close(found.value, latents[0].numpy())
    assert found.converged


LOOPS = [
    ("text unet", SDXL, "DPMSolverMultistepScheduler", {"beta_schedule": "scaled_linear"}),
    (
        "dit",
        {"sample_size": 4, "out_channels": 8},
        "DDPMScheduler",
        {"variance_type": "learned_range", "clip_sample": False},
    ),
]


@pytest.mark.parametrize(("kind", "options", "name", "fields"), LOOPS)
def test_guided_latents_are_those_of_the_loop(kind, options, name, fields, tmp_path):
    """With an empty text as in SDXL, or a learned variance, which guidance leaves as it is."""
    model, scheduler = theirs(kind, options), getattr(diffusers, name)(**fields)
    model.save_pretrained(tmp_path / ("transformer" if kind == "dit" else "unet"))
    scheduler.save_pretrained(tmp_path / "scheduler")
    scheduler.set_timesteps(STEPS)
    start, condition = given(model)
    none = given(model, seed=2)[1] if kind == "text unet" else (np.full(BATCH, CLASSES),)
    noise = in_turn(*step_noise(KEY, STEPS, jnp.asarray(start)))
    x, channels = torch.from_numpy(start), start.shape[1]
    with mock.patch.object(scheduling_ddpm, "randn_tensor", noise):
        for t in scheduler.timesteps:
            with_it, without = (
                torch.from_numpy(predicted(model, x, np.full(BATCH, int(t)), *each))
                for each in (condition, none)
            )
            difference = with_it[:, :channels] - without[:, :channels]
            prediction = without[:, :channels] + SCALE * difference
            output = torch.cat([prediction, with_it[:, channels:]], dim=1)
            x = scheduler.step(output, t, x).prev_sample
    ours, schedule = load_model(tmp_path), Schedule.from_config(tmp_path)
    both = guided(lambda x, t, condition: ours(x, t, *condition), SCALE)
    args = (condition, none)
    found = quick(
        lambda x: sample(both, schedule, x, steps=STEPS, args=args, key=KEY, method="picard")
    )(start)
    assert_close(found.value, x.numpy())
    assert found.converged
