"""`deeppcr.diffusion.load_model` of a text-conditional UNet: diffusers' predictions; bad files and calls."""

import json
import shutil
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("safetensors")

from deeppcr.diffusion import load_model
from deeppcr.diffusion.models import MODELS
from tests.diffusion.networks import quick
from tests.diffusion.published import NETWORKS

GOLDEN = Path(__file__).parent / "golden_text_unet"


@cache
def golden():
    return {name: jnp.asarray(figure) for name, figure in np.load(GOLDEN / "golden.npz").items()}


@cache
def unet():
    return load_model(GOLDEN)


def call(**changed):
    known = golden() | changed
    return known["x"], known["t"], known["text"], known["pooled"], known["time_ids"]


def test_predictions_are_those_of_diffusers():
    found, known = quick(unet())(*call()), golden()["predicted"]
    assert found.dtype == jnp.float32
    scale = np.abs(known).max()
    np.testing.assert_allclose(found / scale, known / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_published_configurations_are_read(config):
    MODELS[config["_class_name"]].config.read(config)


CONFIGS = {
    "mid_block_type": ("UNetMidBlock2D", ValueError, "UNetMidBlock2DCrossAttn"),
    "down_block_types": (["AttnDownBlock2D", "DownBlock2D"], ValueError, "CrossAttnDownBlock2D"),
    "encoder_hid_dim": (8, ValueError, "None"),
    "time_cond_proj_dim": (8, ValueError, "None"),
    "conv_in_kernel": (5, ValueError, "3"),
    "attention_head_dim": (16, ValueError, "at most 4"),
    "transformer_layers_per_block": ([1], ValueError, "2 numbers"),
    "addition_embed_type": ("image", ValueError, "text_time"),
    "addition_time_embed_dim": (None, ValueError, "6 times the second"),
    "time_embedding_type": ("fourier", ValueError, "'positional'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_that_is_not_supported_is_named(name, tmp_path):
    value, error, expected = CONFIGS[name]
    folder = shutil.copytree(GOLDEN, tmp_path / "copy")
    path = folder / "unet" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(error, match=f"{name} is .*expected.*{expected}"):
        load_model(folder)


CALLS = {
    "text": (jnp.ones((2, 6)), ValueError, r"text is float64\[2, 6\], expected \[2, any, 6\]"),
    "pooled": (None, TypeError, r"pooled is None, expected an array \[2, 5\]"),
    "time_ids": (jnp.ones((2, 5)), ValueError, r"time_ids is .*, expected \[2, 6\]"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_calls(name):
    value, error, about = CALLS[name]
    with pytest.raises(error, match=about):
        jax.eval_shape(unet(), *call(**{name: value}))
