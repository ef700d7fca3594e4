"""`experiments.networks.load_model`: predictions of diffusers; bad files and calls are named."""

import json
import shutil
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("safetensors")

from safetensors.numpy import load_file, save_file

from depth import jaxprs
from experiments.networks import load_model
from experiments.networks.load import WEIGHTS, build

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("plain", "fourier", "classes")
ARGUMENTS = ("x", "t", "labels")
# To compile, not to run.
quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@cache
def golden(name):
    return dict(np.load(GOLDEN / name / "golden.npz"))


@cache
def network(name="plain", dtype=None):
    return load_model(GOLDEN / name, dtype)


def given(name, **changed):
    known = golden(name) | changed
    return [known[argument] for argument in ARGUMENTS if argument in known]


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_those_of_diffusers(name):
    found, known = quick(network(name))(*given(name)), golden(name)["predicted"]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-5 * np.abs(known).max())


@pytest.mark.parametrize(("dtype", "close"), [("bfloat16", 0.05), ("float64", 1e-5)])
def test_all_is_computed_in_the_dtype_of_the_parameters(dtype, close):
    model, x = network("plain", dtype), golden("plain")["x"]
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype(dtype)}
    with jax.numpy_dtype_promotion("standard"):  # flax's norms combine dtypes
        traced = quick(model).trace(x, golden("plain")["t"])
    products = equations(traced.jaxpr.jaxpr, "conv_general_dilated")
    assert {equation.outvars[0].aval.dtype for equation in products} == {jnp.dtype(dtype)}
    found = traced.lower().compile()(x, golden("plain")["t"])
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, golden("plain")["predicted"], rtol=0, atol=close)


def equations(jaxpr, *names):
    """Those of some primitives, in called functions too; of all without names."""
    return [e for e in jaxprs.equations(jaxpr) if not names or e.primitive.name in names]


def test_steps_in_parallel_are_one_batch():
    """The number of products of one step, at three times the size, without grouped convolutions."""
    x, ts = jnp.asarray(golden("plain")["x"]), jnp.array([3, 500, 999])
    one = equations(jax.make_jaxpr(network())(x, 3).jaxpr, "conv_general_dilated", "dot_general")
    steps = jax.make_jaxpr(jax.vmap(network()))(jnp.stack([x, 2 * x, -x]), ts).jaxpr
    every = equations(steps, "conv_general_dilated", "dot_general")
    assert len(one) == len(every) > 0
    for equation in every:
        if equation.primitive.name == "conv_general_dilated":
            assert equation.invars[0].aval.shape[0] == 9
            assert equation.params["feature_group_count"] == 1
            assert equation.params["batch_group_count"] == 1


BAD = [
    ("plain", "_class_name", "PixArtTransformer2DModel", "sample takes any JAX function"),
    ("plain", "in_channels", "one", "an integer >= 1"),
    ("plain", "down_block_types", ["DownBlock2D", "SkipDownBlock2D"], "ResnetDownsampleBlock2D"),
    ("plain", "time_embedding_type", "learned", "'fourier'"),
]


@pytest.mark.parametrize(("name", "field", "value", "message"), BAD)
def test_a_field_that_is_not_supported_is_named(name, field, value, message):
    config = json.loads((GOLDEN / name / "unet" / "config.json").read_text())
    with pytest.raises(ValueError, match=f"{field}.*{message}"):
        build(config | {field: value})


@pytest.fixture
def folder(tmp_path):
    """A copy of a network, to be spoiled."""
    return Path(shutil.copytree(GOLDEN / "plain" / "unet", tmp_path / "copy"))


SPOILED = {
    "lacks": (lambda weights: weights.pop("conv_in.bias"), r"lacks \['conv_in.bias'\] \(1 in all"),
    "shape": (
        lambda weights: weights.update({"conv_in.weight": np.zeros((4, 2, 3, 3), np.float32)}),
        r"conv_in\.weight has shape \[4, 2, 3, 3\], expected \[4, 1, 3, 3\]",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_weight_that_does_not_fit_is_named(name, folder):
    spoil, message = SPOILED[name]
    weights = load_file(folder / WEIGHTS)
    spoil(weights)
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ValueError, match=message):
        load_model(folder)


def test_folders_and_files(folder):
    (folder / WEIGHTS).rename(folder / "diffusion_pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=rf"{WEIGHTS} in it, found .*model\.bin"):
        load_model(folder)
    with pytest.raises(FileNotFoundError, match=r"expected one with config\.json"):
        load_model(folder / "nowhere")


X, T = jnp.ones((2, 1, 8, 8), jnp.float32), jnp.array([20, 700])
CALLS = [
    ("plain", (X.astype(int), T), TypeError, "x has dtype int64, expected a float"),
    ("plain", (X[:, :, 1:], T), ValueError, r"x has shape \[2, 1, 7, 8\], expected .* of 2"),
    ("plain", (X, jnp.arange(3)), ValueError, r"t has shape \[3\], expected a scalar or \[2\]"),
    ("classes", (X, T), TypeError, "labels is None, expected a number for each image"),
]


@pytest.mark.parametrize(("name", "arguments", "error", "message"), CALLS)
def test_bad_calls(name, arguments, error, message):
    with pytest.raises(error, match=message):
        jax.eval_shape(network(name), *arguments)
