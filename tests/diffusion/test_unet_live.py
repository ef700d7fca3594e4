"""Our UNet beside diffusers' own, with the same random weights: each kind of block, each option."""

import dataclasses
import inspect
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("safetensors")

import diffusers
import torch
from safetensors.torch import load_file, save_file

from deeppcr.diffusion import load_unet
from deeppcr.diffusion.models.unet.config import UNetConfig
from tests.diffusion.networks import assert_close, quick, with_random_vectors

BATCH, SIDE = 3, 8
SMALL = {
    "sample_size": SIDE,
    "block_out_channels": (8, 16),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "attention_head_dim": 4,
}
# Each value of each option once: to compile a network takes a second or two.
CASES = {
    "deep, as trained on cifar": {
        "block_out_channels": (8, 8, 16),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 2,
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "downsample_padding": 0,
        "norm_eps": 1e-6,
    },
    "attention above, one head, centred": {
        "down_block_types": ("AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D"),
        "attention_head_dim": None,
        "center_input_sample": True,
        "in_channels": 1,
        "out_channels": 2,
    },
    "old names of blocks, heads that do not fill the channels": {
        "down_block_types": ("UNetResDownBlock2D", "UNetResAttnDownBlock2D"),
        "up_block_types": ("UNetResAttnUpBlock2D", "UNetResUpBlock2D"),
        "attention_head_dim": 3,
        "act_fn": "gelu",
    },
    "resampled by residual layers, scale and shift, fourier": {
        "down_block_types": ("AttnDownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "AttnUpBlock2D"),
        "downsample_type": "resnet",
        "upsample_type": "resnet",
        "resnet_time_scale_shift": "scale_shift",
        "time_embedding_type": "fourier",
        "act_fn": "mish",
    },
    "blocks resampled by residual layers, no attention in the middle, classes": {
        "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("ResnetUpsampleBlock2D", "AttnUpBlock2D"),
        "add_attention": False,
        "mid_block_scale_factor": 1.5,
        "num_class_embeds": 10,
    },
    "scale and shift, norm in the middle, classes as times, another size of the embedding": {
        "resnet_time_scale_shift": "scale_shift",
        "attn_norm_num_groups": 8,
        "class_embed_type": "timestep",
        "time_embedding_dim": 24,
    },
    "nothing in the middle, odd channels, learned times, classes as embeddings": {
        "mid_block_type": None,
        "block_out_channels": (9, 18),
        "norm_num_groups": 3,
        "time_embedding_type": "learned",
        "num_train_timesteps": 1000,
        "class_embed_type": "identity",
        "act_fn": "relu",
        "dropout": 0.5,
    },
}


def theirs(options, dtype=torch.float32):
    """A network of diffusers with random weights, also of norms and biases."""
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(**(SMALL | options)).eval()
    return with_random_vectors(model, but=("time_proj.weight",)).to(dtype)


def images(model, batch=BATCH):
    side = model.config.sample_size
    return np.random.default_rng(1).standard_normal(
        (batch, model.config.in_channels, side, side), np.float32
    )


def labels(model):
    config = model.config
    if config.class_embed_type == "identity":
        return np.random.default_rng(2).standard_normal(
            (BATCH, 4 * config.block_out_channels[0]), np.float32
        )
    return np.arange(BATCH) if config.class_embed_type or config.num_class_embeds else None


def predicted(model, x, t, labels=None):
    given = {} if labels is None else {"class_labels": torch.as_tensor(labels)}
    with torch.no_grad():
        return model(torch.as_tensor(x), torch.as_tensor(t), **given).sample.numpy()


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_option_predicts_as_diffusers_does(options, tmp_path):
    model = theirs(options)
    model.save_pretrained(tmp_path)
    x, t, classes = images(model), np.array([1, 500, 999]), labels(model)
    ours = quick(load_unet(tmp_path))(x, t, classes)
    assert ours.dtype == jnp.float32
    assert_close(np.asarray(ours), predicted(model, x, t, classes))


def test_every_kind_of_block_is_compared():
    compared = {
        name.removeprefix("UNetRes")
        for case in CASES.values()
        for name in (SMALL | case)["down_block_types"]
    }
    compared |= {
        name.removeprefix("UNetRes")
        for case in CASES.values()
        for name in (SMALL | case)["up_block_types"]
    }
    assert compared == {*UNetConfig.DOWN, *UNetConfig.UP}


def test_fields_and_their_defaults_are_those_of_diffusers():
    ours = {field.name: field.default for field in dataclasses.fields(UNetConfig)}
    fields = inspect.signature(diffusers.UNet2DModel).parameters.values()
    assert ours == {field.name: field.default for field in fields}


def assert_same_weights(unet, model):
    """Name by name, exactly."""
    known = {name: weight.float().numpy() for name, weight in model.state_dict().items()}
    found = {
        ".".join(map(str, path)): np.asarray(weight[...])
        for path, weight in nnx.to_flat_state(nnx.state(unet))
    }
    assert found.keys() == known.keys()
    for name, weight in found.items():
        assert weight.dtype == np.float32
        np.testing.assert_array_equal(weight, known[name])


@pytest.fixture(scope="module")
def model():
    return theirs({})


def test_one_time_for_all_images(model, tmp_path):
    model.save_pretrained(tmp_path)
    x, t = images(model), np.float32(7.5)
    assert_close(np.asarray(quick(load_unet(tmp_path))(x, t)), predicted(model, x, t))


def test_double_precision(tmp_path):
    model = theirs({}, torch.float64)
    model.save_pretrained(tmp_path)
    x, t = (
        images(model).astype(np.float64),
        0,
    )  # the angles of other times differ by a rounding of float32
    assert_close(
        np.asarray(quick(load_unet(tmp_path, dtype="float64"))(x, t)),
        predicted(model, x, t),
        close=1e-12,
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_files_of_other_dtypes(dtype, tmp_path):
    model = theirs({}, getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    assert_same_weights(load_unet(tmp_path), model)


def test_shards_and_the_folder_of_a_pipeline(model, tmp_path):
    model.save_pretrained(tmp_path / "unet", max_shard_size="60KB")
    assert len(list((tmp_path / "unet").glob("*.safetensors"))) > 1
    assert_same_weights(load_unet(tmp_path), model)


def test_old_names_of_weights(model, tmp_path):
    model.save_pretrained(tmp_path)
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    for new, old in {
        "to_q": "query",
        "to_k": "key",
        "to_v": "value",
        "to_out.0": "proj_attn",
    }.items():
        weights = {name.replace(f".{new}.", f".{old}."): weight for name, weight in weights.items()}
    assert any(".proj_attn." in name for name in weights)
    save_file(weights, path, metadata={"format": "pt"})
    assert_same_weights(load_unet(tmp_path), diffusers.UNet2DModel.from_pretrained(tmp_path))
    assert_same_weights(load_unet(tmp_path), model)


def test_fields_that_a_file_leaves_out_are_as_they_are_by_default(model, tmp_path):
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    all_fields = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: value for name, value in all_fields.items() if name in SMALL})
    )
    assert load_unet(tmp_path).config == UNetConfig.read(all_fields)
