"""`deeppcr.diffusion.load_model` of a diffusion transformer: predictions and latents of diffusers."""

import json
import shutil
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

pytest.importorskip("safetensors")

from safetensors.numpy import load_file, save_file

from deeppcr.diffusion import Schedule, guided, load_model, load_unet, sample
from deeppcr.diffusion.models.dit.config import DiTConfig
from deeppcr.diffusion.models.dit.model import DiT
from tests.diffusion.networks import quick

GOLDEN = Path(__file__).parent / "golden_dit"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@cache
def golden(name):
    return dict(np.load(GOLDEN / name / "golden.npz"))


@cache
def dit(name="learned"):
    return load_model(GOLDEN / name)


def assert_close(found, known):
    scale = np.abs(known).max()
    np.testing.assert_allclose(found / scale, known / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["learned", "older"])
def test_predictions_are_those_of_diffusers(name):
    known = golden(name)
    found = quick(dit(name))(known["x"], known["t"], known["labels"])
    assert found.dtype == jnp.float32
    assert_close(found, known["predicted"])


def test_guided_latents_are_those_of_diffusers():
    """In parallel. The schedule has no use for the learned variance."""
    known, model = golden("learned"), dit()
    schedule = Schedule.from_config(GOLDEN / "learned")
    args = known["labels"], np.full_like(known["labels"], model.null_label)

    @quick
    def solve(x):
        return sample(guided(model, 4.0), schedule, x, steps=5, args=args, method="newton")

    found = solve(known["x"])
    assert found.converged
    assert_close(found.value, known["sampled"])


def test_a_program_has_its_block_once():
    def equations(jaxpr):
        inner = (equations(each) for e in jaxpr.eqns for each in jaxprs_in_params(e.params))
        return len(jaxpr.eqns) + sum(inner)

    def program(layers):
        config = DiTConfig(num_attention_heads=1, attention_head_dim=4, num_layers=layers)
        graph, parameters = nnx.split(nnx.eval_shape(lambda: DiT(config)))
        x, t = jax.ShapeDtypeStruct((2, 4, 8, 8), float), jax.ShapeDtypeStruct((), int)
        call = lambda parameters, x, t: nnx.merge(graph, parameters)(x, t, t)  # noqa: E731
        return jax.make_jaxpr(call)(parameters, x, t).jaxpr

    assert equations(program(2)) == equations(program(5))


@pytest.fixture
def folder(tmp_path):
    """A copy of a model, to be spoiled."""
    return Path(shutil.copytree(GOLDEN / "learned", tmp_path / "copy"))


CONFIGS = {
    "_class_name": (
        "PixArtTransformer2DModel",
        ValueError,
        r"load_model reads no other .*; sample",
    ),
    "caption_channels": (8, ValueError, "None"),
    "depth": (28, ValueError, "no such field"),
    "num_attention_heads": (3.5, TypeError, "an integer >= 1"),
    "attention_head_dim": (0, ValueError, "an integer >= 1"),
    "in_channels": (None, TypeError, "an integer >= 1"),
    "out_channels": ("two", TypeError, "an integer >= 1, or None"),
    "num_layers": (0, ValueError, "an integer >= 1"),
    "dropout": ("none", TypeError, "a number"),
    "norm_num_groups": (None, TypeError, "an integer >= 1"),
    "attention_bias": (None, ValueError, "False, True"),
    "sample_size": ([4, 4], TypeError, "an integer >= 1"),
    "patch_size": (None, TypeError, "an integer >= 1"),
    "activation_fn": ("relu", ValueError, "swiglu"),
    "num_embeds_ada_norm": (None, TypeError, "an integer >= 1"),
    "upcast_attention": ("yes", ValueError, "False, True"),
    "norm_type": ("ada_norm_single", ValueError, "'ada_norm_zero'"),
    "norm_elementwise_affine": (1, ValueError, "False, True"),
    "norm_eps": (0, ValueError, "> 0"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_that_is_not_supported_is_named(name, folder):
    value, error, expected = CONFIGS[name]
    path = folder / "transformer" / "config.json"
    known = json.loads(path.read_text())
    assert {each for each in known if each != "_diffusers_version"} <= {*CONFIGS}
    path.write_text(json.dumps(known | {name: value}))
    with pytest.raises(error, match=f"{name} is .*expected.*{expected}"):
        load_model(folder)


def test_widths_and_the_older_class(folder):
    path = folder / "transformer" / "config.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"attention_head_dim": 3}))
    with pytest.raises(ValueError, match=r"attention_head_dim is 6, expected a multiple of 4"):
        load_model(folder)
    del known["norm_type"]
    path.write_text(json.dumps(known | {"_class_name": "Transformer2DModel"}))
    with pytest.raises(ValueError, match="norm_type is 'layer_norm', expected 'ada_norm_zero'"):
        load_model(folder)
    with pytest.raises(ValueError, match=r"\['UNet2DModel'\]: load_unet .*; load_model reads it"):
        load_unet(folder)


def test_a_weight_of_a_block_that_does_not_fit_is_named(folder):
    weights = load_file(folder / WEIGHTS)
    name = "transformer_blocks.1.attn1.to_q.bias"
    save_file(weights | {name: np.zeros(3, np.float32)}, folder / WEIGHTS)
    with pytest.raises(ValueError, match=rf"{name} has shape \[3\], expected \[8\]"):
        load_model(folder)
    del weights[name]
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ValueError, match=f"lacks {name}"):
        load_model(folder)


X, T = jnp.ones((2, 1, 4, 4)), jnp.arange(2)
CALLS = {
    "integers": ((X.astype(int), T, T), TypeError, "x has dtype int64, expected a float"),
    "a side": ((X[..., :3], T, T), ValueError, r"height and width multiples of 2"),
    "times": ((X, jnp.arange(3), T), ValueError, r"t has shape \[3\], expected a scalar or \[2\]"),
    "no labels": ((X, T), TypeError, "labels is None, expected the classes of the images; 5 for"),
    "floats": ((X, T, X[:, 0, 0, 0]), TypeError, "dtype float64, expected an integer"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_calls(name):
    arguments, error, about = CALLS[name]
    with pytest.raises(error, match=about):
        jax.eval_shape(dit(), *arguments)
