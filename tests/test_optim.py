"""Packed optimizers against the plain ones; flat arrays and back; which optimizers are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from deeppcr.optim import Packing, pack

SHAPES = {"w": (2, 3), "b": (3,), "s": (), "v": (3, 4)}
KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def _promotion():
    """Optax has not been written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def tree(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.standard_normal(n), dtype) for name, n in SHAPES.items()}


def by_ndim(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def trained(optimizer, params):
    """The parameters after some steps in one program, and all updates."""

    def step(carry, scale):
        params, state = carry
        gradients = jax.tree.map(lambda x: (jnp.sin(3 * x) * scale).astype(x.dtype), params)
        updates, state = optimizer.update(gradients, state, params)
        assert jax.tree.structure(updates) == jax.tree.structure(params)
        return (optax.apply_updates(params, updates), state), updates

    scales = jnp.array([1.0, -2.0, 0.5], "float32")
    return jax.lax.scan(step, (params, optimizer.init(params)), scales)


TOGETHER = {
    "adam, first moment in bfloat16": lambda: optax.adam(1e-2, mu_dtype=jnp.bfloat16),
    "norm and schedule": lambda: optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)),
    ),
    "state beside the tree": lambda: optax.apply_if_finite(optax.lion(1e-2), 3),
    "partition by masks": lambda: optax.partition(
        {True: pack(optax.adamw(1e-2, weight_decay=0.1)), False: pack(optax.adam(1e-2))}, by_ndim
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_trains_as_the_plain_one(name):
    plain = packed = TOGETHER[name]()
    if name == "partition by masks":
        plain = optax.adamw(1e-2, weight_decay=0.1, mask=by_ndim)
    else:
        packed = pack(packed)
        state = jax.eval_shape(packed.init, tree(0))
        assert all(leaf.ndim < 2 for leaf in jax.tree.leaves(state))
    found, expected = jax.jit(lambda params: [trained(x, params) for x in (packed, plain)])(tree(0))
    ours, theirs = ([carry[0], updates] for carry, updates in (found, expected))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_each_dtype_has_its_array_and_nothing_is_cast():
    params = {dtype: tree(0, dtype) for dtype in ("bfloat16", "float32", "float64")}
    optimizer = optax.trace(0.5)
    both = jax.jit(lambda params: [trained(x, params) for x in (pack(optimizer), optimizer)])
    (found, _), (expected, _) = both(params)
    assert_same(found[0], expected[0])
    size = sum(int(np.prod(shape)) for shape in SHAPES.values())
    flat = found[1].trace.arrays
    assert {name: (a.dtype.name, a.shape) for name, a in flat.items()} == {
        dtype: (dtype, (size,)) for dtype in params
    }


def test_packed_parameters_train_in_a_loop():
    params, optimizer = tree(0), optax.adamw(1e-2)
    packing = Packing.of(params)

    def ours(params):
        (packed, _), updates = trained(pack(optimizer), packing.pack(params))
        return packed.unpack(), updates.arrays["float32"].shape

    found, shape = ours(params)
    np.testing.assert_allclose(found["w"], trained(optimizer, params)[0][0]["w"], rtol=1e-5)
    assert shape == (3, sum(int(np.prod(shape)) for shape in SHAPES.values()))


def test_extra_arguments_and_traced_rates_reach_the_optimizer():
    packed, plain = pack(contrib.reduce_on_plateau()), contrib.reduce_on_plateau()
    states = packed.init(tree(0)), plain.init(tree(0))
    found, expected = (
        optimizer.update(tree(1), state, tree(0), value=jnp.float32(2.0))[0]
        for optimizer, state in zip((packed, plain), states, strict=True)
    )
    assert_same(found, expected)
    with pytest.raises(TypeError, match="value"):
        packed.update(tree(1), states[0], tree(0))

    def step(rate, params):
        optimizer = pack(optax.sgd(rate))
        return optimizer.update(params, optimizer.init(params))[0]  # without parameters

    assert_same(jax.jit(step)(jnp.float32(0.5), tree(0)), jax.tree.map(lambda x: -x / 2, tree(0)))


SEPARATELY = {
    "adamw, mask by leaf": lambda: optax.adamw(1e-2, mask=by_ndim),
    "centralize": optax.centralize,
    "clip_by_block_rms": lambda: optax.clip_by_block_rms(1.0),
    "freeze": lambda: optax.transforms.freeze({**dict.fromkeys(SHAPES, True), "b": False}),
    "lamb": lambda: optax.lamb(1e-2),
    "muon": lambda: contrib.muon(0.1),
    "noise": lambda: optax.add_noise(0.1, 0.5, KEY),
    "labels": lambda: optax.partition(
        {"one": optax.sgd(0.2), "two": optax.sgd(0.1)},
        lambda params: {name: "one" if name == "w" else "two" for name in params},
    ),
}


@pytest.mark.parametrize("name", SEPARATELY)
def test_what_treats_leaves_separately_is_refused(name):
    with pytest.raises(ValueError, match="optimizer cannot be packed"):
        jax.eval_shape(pack(SEPARATELY[name]()).init, tree(0))  # under jit, no values at all


TREES = {
    "dtypes": lambda: [tree(0), tree(1, "bfloat16"), jnp.int32(7), jnp.ones((0, 2)), None],
    "scalar": lambda: jnp.float32(1.0),
    "random keys": lambda: {"key": jax.random.split(KEY, 2), "z": jnp.array([1 + 2j, 1j])},
    "empty": lambda: {"a": ()},
}


@pytest.mark.parametrize("name", TREES)
def test_packing_round_trips_to_the_bit(name):
    given = TREES[name]()
    packing = Packing.of(given)
    assert packing == Packing.of(jax.eval_shape(TREES[name]))
    assert hash(packing) == hash(Packing.of(given))
    packed = jax.jit(packing.pack)(given)
    assert len(jax.tree.leaves(packed)) == len({leaf.dtype for leaf in jax.tree.leaves(given)})
    assert all(array.ndim == 1 for array in packed.arrays.values())
    data = lambda x: jax.random.key_data(x) if x.dtype == KEY.dtype else x  # noqa: E731
    assert_same(jax.tree.map(data, jax.jit(packing.unpack)(packed)), jax.tree.map(data, given))


def test_gradients_through_unpacking():
    params = tree(0)
    packing = Packing.of(params)
    loss = lambda packed: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(packed.unpack()))  # noqa: E731
    found = packing.unpack(jax.grad(loss)(packing.pack(params)))
    assert_same(found, jax.tree.map(jnp.cos, params))
    shapes = jax.eval_shape(packing.pack, params)
    assert "pad" not in str(jax.make_jaxpr(jax.grad(lambda p: packing.unpack(p)["s"]))(shapes))


def test_bad_arguments_are_named():
    params = tree(0)
    with pytest.raises(TypeError, match=r"optimizer is 0\.1, expected an optax"):
        pack(0.1)
    with pytest.raises(TypeError, match="str"):
        pack(optax.sgd(0.1)).init({**params, "w": "seven"})
    optimizer = pack(optax.sgd(0.1))
    state = optimizer.init(params)
    for wrong in ({"w": params["w"]}, {**params, "b": jnp.ones(4)}, Packing.of(1.0).pack(1.0)):
        with pytest.raises(ValueError, match="updates has the structure"):
            optimizer.update(wrong, state, params)
    with pytest.raises(TypeError, match=r"updates .*differ in dtype.*packing casts nothing"):
        optimizer.update({**params, "b": params["b"].astype("bfloat16")}, state, params)
