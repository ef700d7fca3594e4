"""Which optimizers are refused, and by which name."""

import jax
import jax.numpy as jnp
import optax
import pytest
from optax import contrib

from deeppcr.optim import pack
from tests.parameters import SHAPES, by_ndim, tree

KEY = jax.random.key(0)
NAMES = [name for name in SHAPES if name != "none"]


def labels(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "one" if "w" in str(path) else "two", params
    )


# Which leaf, or which part of the state, the error names.
SEPARATELY = {
    "adafactor": (lambda: optax.adafactor(1e-2), "keeps float32"),
    "adafactor, factored": (
        lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
        "keeps float32",
    ),
    "adamw, mask by leaf": (
        lambda: optax.adamw(1e-2, mask=by_ndim),
        "result.*'[vw]'.* computed otherwise",
    ),
    "adaptive_grad_clip": (lambda: optax.adaptive_grad_clip(0.1), "'b'.*reduced by sum"),
    "add_noise": (lambda: optax.add_noise(0.1, 0.5, KEY), "'b'.*differs from entry to entry"),
    "centralize": (lambda: optax.centralize(), "reduces some axes of .*'v'"),
    "clip_by_block_rms, never reached": (
        lambda: optax.clip_by_block_rms(1e30),
        "'b'.*reduced by sum",
    ),
    "flatten": (lambda: optax.flatten(optax.adam(1e-2)), "concatenate"),
    "freeze": (
        lambda: optax.transforms.freeze({**dict.fromkeys(SHAPES, True), "b": False}),
        "raises",
    ),
    "fromage": (lambda: optax.fromage(1e-2), "'b'.*reduced by sum"),
    "galore": (lambda: contrib.galore(0.1), "flat array"),
    "lamb": (lambda: optax.lamb(1e-2), "'b'.*reduced by sum"),
    "lars": (lambda: optax.lars(1e-2), "'b'.*reduced by sum"),
    "lbfgs": (lambda: optax.lbfgs(1e-2, linesearch=None), r"keeps float32\[10, 22\]"),
    "masked by leaf": (lambda: optax.masked(optax.adam(0.1), by_ndim), "another structure.*'none'"),
    "muon": (lambda: contrib.muon(0.1), "another structure"),
    "noisy_sgd": (lambda: optax.noisy_sgd(1e-2, key=KEY), "'b'.*differs from entry to entry"),
    "novograd": (lambda: optax.novograd(1e-2), r"keeps float32\[\]"),
    "partition by leaf": (
        lambda: optax.partition({"one": optax.adam(0.1), "two": optax.sgd(0.1)}, labels),
        "structure.*'w'",
    ),
    "partition, no state": (
        lambda: optax.partition({"one": optax.sgd(0.2), "two": optax.sgd(0.1)}, labels),
        "result.*'w'",
    ),
    "scale_by_param_block_norm": (lambda: optax.scale_by_param_block_norm(), "'b'.*reduced by sum"),
    "scale_by_trust_ratio": (lambda: optax.scale_by_trust_ratio(), "'b'.*reduced by sum"),
    "sm3": (lambda: optax.sm3(1e-2), "another structure"),
    "zero_nans": (lambda: optax.zero_nans(), r"keeps bool\[\]"),
}


@pytest.fixture(autouse=True)
def _promotion():
    """Optax has not been written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("name", SEPARATELY)
def test_what_treats_leaves_separately_is_refused(name):
    make, named = SEPARATELY[name]
    optimizer = pack(make())
    with pytest.raises(ValueError, match=f"optimizer cannot be packed.*{named}"):
        jax.eval_shape(optimizer.init, tree(0))  # under jit, no values at all


def adversarial(update):
    return pack(
        optax.GradientTransformation(lambda params: (), lambda u, s, p=None: (update(u), s))
    )


@pytest.mark.parametrize(
    "update",
    [
        lambda u: {**u, "b": 2 * u["b"]},
        lambda u: jax.tree.map(lambda x: x[::-1] if x.ndim else x, u),
        lambda u: jax.tree.map(lambda x: x.T, u),
        lambda u: jax.tree.map(lambda x: jnp.cumsum(x).reshape(x.shape), u),
        lambda u: jax.tree.map(lambda x: x * x.size, u),
        lambda u: jax.tree.map(
            lambda x: x / jnp.maximum(1.0, jnp.abs(x).max() * 1e-30), {n: u[n] for n in NAMES}
        ),
        lambda u: jax.tree.map(
            lambda x: x * jnp.arange(float(x.size), dtype=x.dtype).reshape(x.shape), u
        ),
        lambda u: jax.tree.map(
            lambda x: jax.lax.cond(jnp.all(x < 1e30), lambda: x, lambda: 0 * x), u
        ),
        lambda u: jax.tree.map(
            lambda x: x / sum(jnp.sum(y) / max(y.size, 1) for y in jax.tree.leaves(u)), u
        ),
        lambda u: jax.tree.map(lambda x: x / sum(jnp.sum(y) for y in jax.tree.leaves(u)[1:]), u),
        lambda u: jax.tree.map(lambda x: jax.random.normal(KEY, x.shape, x.dtype), u),
    ],
)
def test_no_leaf_may_be_treated_otherwise(update):
    with pytest.raises(ValueError, match="optimizer cannot be packed"):
        adversarial(update).init(tree(0))
