"""`deeppcr.diffusion.load_unet`: predictions of diffusers; a pure function; bad files are named."""

import json
import shutil
import sys
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

pytest.importorskip("safetensors")

from safetensors.numpy import load_file, save_file

from deeppcr.diffusion import load_unet
from deeppcr.diffusion.models.layers import GroupNorm
from tests.diffusion.networks import quick

GOLDEN = Path(__file__).parent / "golden_unet"
NAMES = ("plain", "fourier", "half")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@cache
def golden(name):
    return dict(np.load(GOLDEN / name / "golden.npz"))


@cache
def unet(name="plain", dtype="float32"):
    return load_unet(GOLDEN / name, dtype=dtype)


@cache
def compiled(name="plain", dtype="float32"):
    return quick(unet(name, dtype))


def inputs(dtype="float32"):
    return jnp.asarray(golden("plain")["x"], dtype), jnp.asarray([20, 700])


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_those_of_diffusers(name):
    known = golden(name)
    found = compiled(name)(known["x"], known["t"], known.get("labels"))
    scale = np.abs(known["predicted"]).max(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(found / scale, known["predicted"] / scale, rtol=0, atol=1e-5)


def test_all_is_computed_in_the_dtype_of_the_parameters():
    x, t = inputs()
    known = {variable.dtype for variable in jax.tree.leaves(nnx.state(unet("plain", "bfloat16")))}
    traced = quick(unet("plain", "bfloat16")).trace(x, t)
    convolutions = equations(traced.jaxpr.jaxpr, "conv_general_dilated")
    assert {equation.outvars[0].aval.dtype for equation in convolutions} == known
    assert known == {jnp.dtype("bfloat16")}
    found = traced.lower().compile()(x, t)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, golden("plain")["predicted"], rtol=0, atol=0.05)


def equations(jaxpr, name):
    """The equations of a primitive, in called functions too."""
    inner = [
        equation
        for e in jaxpr.eqns
        for j in jaxprs_in_params(e.params)
        for equation in equations(j, name)
    ]
    return inner + [e for e in jaxpr.eqns if e.primitive.name == name]


def test_steps_in_parallel_are_one_batch():
    """The number of products of one step, at three times the size, without grouped convolutions."""
    x, _ = inputs()
    xs, ts = jnp.stack([x, 2 * x, -x]), jnp.array([3, 500, 999])
    traced = quick(jax.vmap(unet())).trace(xs, ts)
    in_turn = [compiled()(x, t, None) for x, t in zip(xs, np.stack([ts, ts], 1), strict=True)]
    np.testing.assert_allclose(traced.lower().compile()(xs, ts), in_turn, rtol=0, atol=1e-5)
    one, all_steps = jax.make_jaxpr(unet())(x, 3).jaxpr, traced.jaxpr.jaxpr
    for name in "conv_general_dilated", "dot_general":
        assert len(equations(one, name)) == len(equations(all_steps, name)) > 0
    for equation in equations(all_steps, "conv_general_dilated"):
        assert equation.invars[0].aval.shape[0] == 6
        assert equation.params["feature_group_count"] == equation.params["batch_group_count"] == 1


def test_derivatives():
    """Along a direction of parameters and x: backwards, and as differences say. In float64."""
    graph, parameters = nnx.split(unet("plain", "float64"))
    assert {leaf.dtype for leaf in jax.tree.leaves(parameters)} == {jnp.dtype("float64")}
    x, t = inputs("float64")
    start = (parameters, x)
    random = np.random.default_rng(0)
    along, weight = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape), (start, start[1]))

    @quick
    @partial(jax.value_and_grad, has_aux=True)
    def differentiated(at):
        predicted = nnx.merge(graph, at[0])(at[1], t)
        return (weight * predicted).sum(), predicted

    def moved(h):
        return jax.tree.map(lambda a, b: np.asarray(a + h * b), start, along)

    (_, predicted), gradient = differentiated(jax.tree.map(np.asarray, start))
    assert predicted.dtype == jnp.float64
    np.testing.assert_allclose(predicted, golden("plain")["predicted"], rtol=0, atol=1e-5)
    products = jax.tree.map(lambda a, b: np.vdot(a, b), gradient, along)
    ends = [differentiated(moved(h))[0][0] for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(
        (ends[0] - ends[1]) / 2e-5, sum(jax.tree.leaves(products)), rtol=1e-5
    )


def test_a_call_changes_nothing():
    model = load_unet(GOLDEN / "plain")
    before = nnx.split(model)
    jax.eval_shape(model, *inputs())
    after = nnx.split(model)
    assert before[0] == after[0]
    jax.tree.map(np.testing.assert_array_equal, before[1], after[1])


def test_a_norm_of_large_numbers():
    """The variance of numbers that are nearly equal."""
    norm = GroupNorm(4, 2, 1e-5)
    norm.weight, norm.bias = (
        nnx.Param(jnp.ones(4, jnp.float32)),
        nnx.Param(jnp.zeros(4, jnp.float32)),
    )
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)) + 3000
    grouped = x.astype(np.float32).astype(np.float64).reshape(2, 2, -1)
    wanted = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(
        grouped.var(-1, keepdims=True) + 1e-5
    )
    found = norm(jnp.asarray(x, jnp.float32))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found.reshape(grouped.shape), wanted, rtol=0, atol=1e-3)


@pytest.fixture
def folder(tmp_path):
    """A copy of a model, to be spoiled."""
    return Path(shutil.copytree(GOLDEN / "plain", tmp_path / "copy"))


CONFIGS = {
    "_class_name": ("UNet2DConditionModel", ValueError, "UNet2DModel"),
    "cross_attention_dim": (8, ValueError, "no such field"),
    "in_channels": ("one", TypeError, "an integer >= 1"),
    "out_channels": (0, ValueError, "an integer >= 1"),
    "layers_per_block": (None, TypeError, "an integer >= 1"),
    "time_embedding_dim": (-1, ValueError, "an integer >= 1, or None"),
    "sample_size": ([8, "8"], TypeError, "a side of an image"),
    "center_input_sample": (1, ValueError, "False, True"),
    "time_embedding_type": ("learned", ValueError, None),
    "freq_shift": (2, ValueError, "less than 2"),
    "flip_sin_to_cos": ("yes", ValueError, "False, True"),
    "down_block_types": (["DownBlock2D", "SkipDownBlock2D"], ValueError, "ResnetDownsampleBlock2D"),
    "up_block_types": (["UpBlock2D"], ValueError, "2 names"),
    "mid_block_type": ("UNetMidBlock2DCrossAttn", ValueError, "UNetMidBlock2D"),
    "block_out_channels": ([4, 8.5], TypeError, "an integer >= 1"),
    "mid_block_scale_factor": (0, ValueError, "> 0"),
    "downsample_padding": (2, ValueError, r"\[0, 1\]"),
    "downsample_type": ("fir", ValueError, "'conv', 'resnet'"),
    "upsample_type": (None, ValueError, "'conv', 'resnet'"),
    "dropout": ("none", TypeError, "a number"),
    "act_fn": ("tanh", ValueError, "silu"),
    "attention_head_dim": (9, ValueError, "at most 8"),
    "norm_num_groups": (3, ValueError, "divisor.*4"),
    "attn_norm_num_groups": (3, ValueError, "divisor.*8"),
    "norm_eps": (True, TypeError, "a number > 0"),
    "resnet_time_scale_shift": ("spatial", ValueError, "scale_shift"),
    "add_attention": (None, ValueError, "False, True"),
    "class_embed_type": ("projection", ValueError, "timestep"),
    "num_class_embeds": (0, ValueError, "an integer >= 1"),
    "num_train_timesteps": ("1000", TypeError, "an integer >= 1"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_that_is_not_supported_is_named(name, folder):
    value, error, expected = CONFIGS[name]
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    about = (
        "num_train_timesteps is None" if expected is None else f"{name} is .*expected.*{expected}"
    )
    with pytest.raises(error, match=about):
        load_unet(folder)


def test_every_field_is_tried():
    known = json.loads((GOLDEN / "plain" / "config.json").read_text())
    assert {name for name in known if name != "_diffusers_version"} <= {*CONFIGS}


def without(weights):
    del weights["conv_in.bias"]


def besides(weights):
    weights["conv_in.scale"] = np.zeros(3, np.float32)


def reshaped(weights):
    weights["mid_block.attentions.0.to_q.weight"] = np.zeros((8, 9), np.float32)


SPOILED = {
    without: r"lacks conv_in\.bias",
    besides: r"also has conv_in\.scale",
    reshaped: r"mid_block\.attentions\.0\.to_q\.weight has shape \[8, 9\], expected \[8, 8\]",
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_weight_that_does_not_fit_is_named(spoil, folder):
    weights = load_file(folder / WEIGHTS)
    spoil(weights)
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ValueError, match=SPOILED[spoil]):
        load_unet(folder)


def test_of_many_weights_some_are_named(folder):
    weights = load_file(folder / WEIGHTS)
    save_file(
        {name: weight for name, weight in weights.items() if "resnets" not in name},
        folder / WEIGHTS,
    )
    with pytest.raises(
        ValueError, match=r"down_blocks\.0\.resnets\.0\.conv1\.bias, .* and \d+ more"
    ):
        load_unet(folder)


def test_folders_and_files(folder):
    with pytest.raises(TypeError, match="dtype is int32, expected a float"):
        load_unet(folder, dtype="int32")
    (folder / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=f"{WEIGHTS} is no file of safetensors"):
        load_unet(folder)
    (folder / WEIGHTS).rename(folder / "diffusion_pytorch_model.bin")
    with pytest.raises(
        FileNotFoundError, match=rf"{WEIGHTS}.*found .*diffusion_pytorch_model\.bin"
    ):
        load_unet(folder)
    with pytest.raises(FileNotFoundError, match=r"expected a folder with config\.json"):
        load_unet(folder / "nowhere")


@pytest.mark.parametrize("package", ["flax", "safetensors.flax"])
def test_a_package_that_is_not_installed(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=rf"load_unet needs {package}: pip install 'deeppcr\[diffusion\]'"
    ):
        load_unet(GOLDEN / "plain")


X, T = inputs()
CALLS = {
    "integers": ((X.astype(int), T), TypeError, "x has dtype int64, expected a float"),
    "no batch": (
        (X[0], T),
        ValueError,
        r"x has shape \[1, 8, 8\], expected \[batch, 1, height, width\]",
    ),
    "channels": ((jnp.repeat(X, 3, axis=1), T), ValueError, r"x has shape \[2, 3, 8, 8\]"),
    "an odd height": ((X[:, :, 1:], T), ValueError, "multiples of 2"),
    "times": ((X, jnp.arange(3)), ValueError, r"t has shape \[3\], expected a scalar or \[2\]"),
    "labels": ((X, T, T), TypeError, "labels are given, expected None"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_calls(name):
    arguments, error, about = CALLS[name]
    with pytest.raises(error, match=about):
        unet()(*arguments)


def test_bad_labels():
    known = golden("fourier")
    x, t = jnp.asarray(known["x"]), known["t"]
    with pytest.raises(TypeError, match="labels is None, expected the classes"):
        unet("fourier")(x, t)
    with pytest.raises(TypeError, match="dtype float32, expected an integer"):
        unet("fourier")(x, t, jnp.ones(2, jnp.float32))
    with pytest.raises(ValueError, match=r"labels has shape \[3\], expected a scalar or \[2\]"):
        unet("fourier")(x, t, jnp.arange(3))
