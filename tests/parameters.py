"""Trees of parameters to pack, and what it means that they are the same."""

import jax
import jax.numpy as jnp
import numpy as np

SHAPES = {"w": (2, 3), "b": (3,), "s": (), "v": (3, 4), "none": (0, 2)}


def tree(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(np.asarray(rng.standard_normal(shape)).astype(dtype))
        for name, shape in SHAPES.items()
    }


def mixed(seed):
    dtypes = ["float32", "bfloat16", "float16", "float64"]
    return {dtype: tree(seed, dtype) for dtype in dtypes}


def by_ndim(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


def everything():
    """Parameters of every kind: only floating ones can be trained."""
    return {
        "w": jnp.array([[0.0, -0.0], [1.5, jnp.nan]], "float32"),
        "frozen": (
            jnp.array([-0.0, 0.0, jnp.inf, 2.0**-149], "float32"),
            jnp.array([-0.0, 1.0], "bfloat16"),
        ),
        "count": jnp.int32(-3),
        "flag": jnp.array([True, False]),
        "key": jax.random.split(jax.random.key(0), 2),
        "nothing": None,
    }


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
