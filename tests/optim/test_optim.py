"""Packed optimizers against the plain ones; what is not trained; which optimizers are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from deeppcr.optim import Packed, Packing, pack
from tests.parameters import SHAPES, assert_same, by_ndim, everything, mixed, tree


def multi(schedule):
    return optax.MultiSteps(
        optax.sgd(0.1, 0.9), 2, should_skip_update_fn=schedule
    ).gradient_transformation()


TOGETHER = {
    "adagrad": lambda: optax.adagrad(1e-2),
    "adam": lambda: optax.adam(1e-2),
    "adam, first moment in bfloat16": lambda: optax.adam(1e-2, mu_dtype=jnp.bfloat16),
    "adamw, mask of all": lambda: optax.adamw(1e-2, mask=lambda p: jax.tree.map(lambda _: True, p)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
    "clip_by_global_norm": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "conditionally_transform": lambda: optax.conditionally_transform(
        optax.sgd(0.1, 0.9), lambda step: step < 2
    ),
    "flatten": lambda: optax.flatten(optax.adam(1e-2)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.sgd)(
        optax.cosine_decay_schedule(0.1, 10)
    ),
    "keep_params_nonnegative": lambda: optax.keep_params_nonnegative(),
    "lion": lambda: optax.lion(1e-2),
    "MultiSteps": lambda: multi(optax.skip_not_finite),
    "MultiSteps, large ones skipped": lambda: multi(
        lambda u, s, p: optax.skip_large_updates(u, s, p, 20.0)
    ),
    "prodigy": lambda: contrib.prodigy(),
    "rmsprop": lambda: optax.rmsprop(1e-2, centered=True, momentum=0.9),
    "rprop": lambda: optax.rprop(1e-2),
    "schedule": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)),
    "schedule_free": lambda: contrib.schedule_free_sgd(0.1),
}
# The trial compares each with the plain one, step by step. These also train beside it: their state
# has a number of its own for all leaves, another dtype or another tree, or it follows a schedule.
TRAINED = (*("adam, first moment in bfloat16", "MultiSteps", "prodigy", "schedule"),)


def trained(optimizer, params, gradients):
    """The parameters after some steps, compiled, as a training loop would have it."""

    def step(carry, g):
        params, state = carry
        updates, state = optimizer.update(g, state, params)
        assert jax.tree.structure(updates) == jax.tree.structure(params)
        return (optax.apply_updates(params, updates), state), updates

    (params, _), updates = jax.lax.scan(step, (params, optimizer.init(params)), gradients)
    return params, updates


def assert_close(found, expected, factor=50, atleast=0.0):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        rtol = max(factor * float(jnp.finfo(theirs.dtype).eps), atleast)
        np.testing.assert_allclose(
            ours.astype("float64"), theirs.astype("float64"), rtol=rtol, atol=rtol / 10
        )


@pytest.fixture(autouse=True)
def _promotion():
    """Optax has not been written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}  # to compile; nothing runs for long
GRADIENTS = jax.tree.map(lambda *leaves: np.stack(leaves), *map(tree, range(1, 5)))


def times(factors, params):
    """Gradients: the parameters times each factor."""
    stack = lambda x: np.stack([np.asarray(x) * np.asarray(f, x.dtype) for f in factors])  # noqa: E731
    return jax.tree.map(stack, params)


def run(*optimizers, params=None, gradients=GRADIENTS):
    """What each of the optimizers makes of the parameters, by one program."""
    params = tree(0) if params is None else params
    every = lambda p, g: [trained(optimizer, p, g) for optimizer in optimizers]  # noqa: E731
    return jax.jit(every, compiler_options=FAST)(params, gradients)


@pytest.mark.parametrize("name", sorted(TOGETHER.keys() - TRAINED))
def test_what_treats_entries_alike_passes_the_trial(name):
    state = jax.eval_shape(pack(TOGETHER[name]()).init, tree(0))
    assert all(leaf.ndim < 2 for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("name", TRAINED)
def test_what_treats_entries_alike_gives_what_the_plain_one_gives(name):
    optimizer = TOGETHER[name]()
    assert_close(*run(pack(optimizer), optimizer))


def test_elementwise_optimizers_run_eagerly_give_the_same_bits():
    optimizer = optax.lion(1e-2)
    params, gradients = ({name: tree(seed)[name] for name in ("w", "s")} for seed in (0, 1))
    packed = pack(optimizer)
    ours, theirs = packed.init(params), optimizer.init(params)
    for _ in range(2):
        ours, theirs = (
            packed.update(gradients, ours, params),
            optimizer.update(gradients, theirs, params),
        )
        assert_same(ours[0], theirs[0])
        ours, theirs = ours[1], theirs[1]


def test_each_dtype_has_its_array_and_nothing_is_cast():
    params = mixed(0)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.9))
    packed = pack(optimizer)
    found = run(packed, optimizer, params=params, gradients=times((1, -2), mixed(1)))
    # The norm over all dtypes is summed in the narrower ones too, in another order.
    assert_close(*found, atleast=1e-2)
    _, trace = jax.eval_shape(packed.init, params).inner_state
    size = sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert {name: (a.dtype.name, a.shape) for name, a in trace.trace.arrays.items()} == {
        d: (d, (size,)) for d in params
    }


def test_one_leaf_a_dtype_may_be_treated_by_itself():
    params = {"w": jnp.ones((2, 3)), "b": jnp.full(3, 0.5, "float32"), "none": jnp.zeros((0, 2))}
    optimizer = optax.lamb(1e-2)
    assert_close(*run(pack(optimizer), optimizer, params=params, gradients=times((1, 2), params)))


@pytest.mark.parametrize(
    "params", [jnp.ones((2, 2)), (jnp.float32(1.0), jnp.zeros((0,), "float32"))]
)
def test_a_scalar_an_array_and_nothing_are_trees_too(params):
    optimizer = optax.chain(
        optax.apply_if_finite(optax.clip_by_global_norm(0.5), 2), optax.adam(0.1)
    )
    assert_close(*run(pack(optimizer), optimizer, params=params, gradients=times((1, 2), params)))


@pytest.mark.parametrize(
    "mask",
    [
        {"w": True, "frozen": False, "count": True, "flag": True, "key": True, "nothing": True},
        {
            "w": np.True_,
            "frozen": (False, False),
            "count": False,
            "flag": False,
            "key": False,
            "nothing": None,
        },
        lambda params: {**jax.tree.map(lambda _: True, params), "frozen": False},
    ],
    ids=["prefix", "full", "function"],
)
def test_what_is_not_trained_keeps_its_bits_under_weight_decay(mask):
    optimizer, params = pack(optax.adamw(0.1, weight_decay=0.5), mask=mask), everything()
    state = optimizer.init(params)
    assert {name: array.shape for name, array in state.inner_state[0].mu.arrays.items()} == {
        "float32": (4,)
    }
    gradients = {**params, "w": jnp.ones((2, 2), "float32")}
    gradients |= {
        "count": np.zeros((), jax.dtypes.float0),
        "key": np.zeros(2, jax.dtypes.float0),
        "flag": None,
    }

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update({**gradients, "flag": jnp.zeros(2, bool)}, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(2):
        moved, state = step(params, state)
        kept = [name for name in params if name != "w"]
        assert_same({name: moved[name] for name in kept}, {name: params[name] for name in kept})
        assert not np.array_equal(moved["w"], params["w"], equal_nan=True)
        params = moved
    updates = optimizer.update(gradients, state, params)[0]
    assert updates["flag"] is None
    # A compiler drops any 0 that it knows of, but -0.0 + 0.0 is 0.0.
    assert all(np.signbit(np.asarray(leaf, float)).all() for leaf in updates["frozen"])


def test_without_parameters_there_is_nothing_to_do():
    optimizer = pack(optax.adam(0.1))
    assert optimizer.update({}, optimizer.init({}), {})[0] == {}


def test_the_trained_part_goes_as_if_it_were_alone():
    params, mask = tree(0), {**dict.fromkeys(SHAPES, True), "b": False}
    part = lambda t: {name: leaf for name, leaf in t.items() if name != "b"}  # noqa: E731
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2))
    ((found, _),) = run(pack(optimizer, mask=mask))
    ((expected, _),) = run(optimizer, params=part(params), gradients=part(GRADIENTS))
    assert_close(part(found), expected)
    assert_same(found["b"], params["b"])


def test_masks_of_the_optimizer_become_a_partition_of_packed_ones():
    decayed, plain = optax.adamw(1e-2, weight_decay=0.1), optax.adamw(1e-2, weight_decay=0.0)
    parts = {True: pack(decayed), False: pack(plain)}
    expected = optax.adamw(1e-2, weight_decay=0.1, mask=by_ndim)
    gradients = jax.tree.map(lambda x: x[:2], GRADIENTS)
    assert_close(*run(optax.partition(parts, by_ndim), expected, gradients=gradients))


def loss(params, x):
    return jnp.square(jnp.tanh(x @ params["w"] + params["b"]) @ params["v"] - params["s"]).mean()


def test_packed_parameters_train_in_a_loop_as_plain_ones_do():
    params, optimizer = tree(0), optax.adamw(1e-2)
    xs = jnp.asarray(np.random.default_rng(5).standard_normal((6, 4, 2)), "float32")
    params |= {"count": jnp.int32(1)}
    packing, packer = Packing.of(params), pack(optimizer)
    floats = lambda p: {name: p[name] for name in SHAPES}  # noqa: E731

    @jax.jit
    def ours(params):
        def step(carry, x):
            packed, state = carry
            gradients = jax.grad(lambda p: loss({**params, **p}, x))(floats(packing.unpack(packed)))
            updates, state = packer.update(
                packing.pack({**gradients, "count": jnp.int32(0)}), state, packed
            )
            return (optax.apply_updates(packed, updates), state), None

        packed = packing.pack(params)
        (packed, _), _ = jax.lax.scan(step, (packed, packer.init(packed)), xs)
        return packing.unpack(packed)

    @jax.jit
    def theirs(params):
        def step(carry, x):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), xs)[0][0]

    with jax.numpy_rank_promotion("allow"):
        assert_close(floats(ours(params)), theirs(floats(params)), factor=500)


def test_extra_arguments_reach_the_optimizer():
    optimizer, params, gradients = contrib.reduce_on_plateau(patience=1), tree(0), tree(1)
    packed = pack(optimizer)
    state, plain = packed.init(params), optimizer.init(params)
    for value in (1.0, 2.0, 3.0):
        found, state = packed.update(gradients, state, params, value=jnp.float32(value), unused=len)
        expected, plain = optimizer.update(gradients, plain, params, value=jnp.float32(value))
    assert_close(found, expected)


def test_the_learning_rate_may_be_traced():
    @jax.jit
    def step(rate, params):
        optimizer = pack(optax.sgd(rate))
        return optimizer.update(params, optimizer.init(params))[0]

    assert_close(step(jnp.float32(0.5), tree(0)), jax.tree.map(lambda x: -x / 2, tree(0)))


def test_what_is_proven_once_is_not_traced_again():
    calls = []

    def update(updates, state, params=None):
        calls.append(isinstance(updates, Packed))
        return jax.tree.map(jnp.negative, updates), state

    optimizer = pack(optax.GradientTransformation(lambda params: (), update))
    state = optimizer.init(tree(0))
    for _ in range(3):
        optimizer.update(tree(1), state, tree(0))
    assert calls.count(False) == 1


@pytest.mark.parametrize("context", ["mesh", "shard_map", "a rate that varies"])
def test_the_trial_heeds_neither_trace_nor_mesh(context):
    mesh, params = jax.make_mesh((2,), ("x",)), tree(0)

    def step(params, gradients, rate=0.5):
        optimizer = pack(optax.chain(optax.clip_by_global_norm(1e9), optax.sgd(rate)))
        return optimizer.update(gradients, optimizer.init(params), params)[0]

    def varying(params, gradients):
        updates = step(params, gradients, (jax.lax.axis_index("x") + 1.0).astype("float32") / 3)
        return jax.lax.psum(updates, "x")

    if context == "mesh":
        with jax.set_mesh(mesh):
            found = jax.jit(step)(params, tree(1))
    else:
        body = step if context == "shard_map" else varying
        specs = jax.sharding.PartitionSpec()
        sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs)
        found = jax.jit(sharded)(params, tree(1))
    factor = 1.0 if context == "a rate that varies" else 0.5
    assert_close(found, jax.tree.map(lambda x: -factor * x, tree(1)))


def test_init_raises_what_the_optimizer_raises_unless_arguments_are_missing():
    def update(updates, state, params=None):
        raise RuntimeError("seven")

    optimizer = pack(optax.GradientTransformation(lambda params: (), update))
    with pytest.raises(RuntimeError, match="seven"):
        optimizer.init(tree(0))
    optimizer = pack(contrib.reduce_on_plateau())
    state = optimizer.init(tree(0))
    with pytest.raises(TypeError, match="value"):
        optimizer.update(tree(1), state, tree(0))


def test_what_is_behind_many_steps_is_refused():
    optimizer = optax.MultiSteps(optax.lars(0.1), 777).gradient_transformation()
    with pytest.raises(ValueError, match="optimizer cannot be packed"):
        pack(optimizer).init(tree(0))


KEY = jax.random.key(0)
NAMES = [name for name in SHAPES if name != "none"]


def labels(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "one" if "w" in str(path) else "two", params
    )


# Which leaf, or which part of the state, the error names.
SEPARATELY = {
    "adafactor": (lambda: optax.adafactor(1e-2), "'b'.*shape"),
    "adamw, mask by leaf": (lambda: optax.adamw(1e-2, mask=by_ndim), "'[vw]'.* differs"),
    "add_noise": (lambda: optax.add_noise(0.1, 0.5, KEY), "'[bs]'.* differs"),
    "centralize": (lambda: optax.centralize(), "'v'.* differs"),
    "clip_by_block_rms, never reached": (lambda: optax.clip_by_block_rms(1e30), "'[bs]'.* differs"),
    "freeze": (
        lambda: optax.transforms.freeze({**dict.fromkeys(SHAPES, True), "b": False}),
        "raises",
    ),
    "galore": (lambda: contrib.galore(0.1), "flat array"),
    "lamb": (lambda: optax.lamb(1e-2), "'[bs]'.* differs"),
    "lbfgs": (lambda: optax.lbfgs(1e-2, linesearch=None), r"'b'.* has shape \[10, 3\]"),
    "masked by leaf": (lambda: optax.masked(optax.adam(0.1), by_ndim), "another structure.*'b'"),
    "muon": (lambda: contrib.muon(0.1), "another structure"),
    "novograd": (lambda: optax.novograd(1e-2), r"'b'.* has shape \[\]"),
    "partition, no state": (
        lambda: optax.partition({"one": optax.sgd(0.2), "two": optax.sgd(0.1)}, labels),
        "'w'.* differs",
    ),
    "sm3": (lambda: optax.sm3(1e-2), "another structure"),
}


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


@pytest.mark.parametrize("step", [9, 100])
def test_what_treats_leaves_separately_only_later_is_refused(step):
    def update(updates, count, params=None):
        late = jax.tree.map(lambda x: x / jnp.sqrt(jnp.sum(x * x) + 1), updates)
        chosen = jax.tree.map(lambda x, y: jnp.where(count >= step, x, y), late, updates)
        return chosen, count + 1

    optimizer = optax.GradientTransformation(lambda params: jnp.int32(0), update)
    with pytest.raises(ValueError, match="optimizer cannot be packed"):
        pack(optimizer).init(tree(0))


def test_the_trial_is_small_and_leaves_what_is_being_watched_alone():
    """Also under a trace, where nans are errors."""
    shapes = []

    def update(updates, state, params=None):
        shapes.extend(leaf.shape for leaf in jax.tree.leaves(updates))
        return updates, state

    optimizer = pack(optax.GradientTransformation(lambda params: (), update))
    params = {"w": jax.ShapeDtypeStruct((10**6, 10**6), "float32")}
    with jax.debug_nans(True):
        jax.eval_shape(optimizer.init, params)
    assert max(map(np.prod, shapes)) <= 16


def test_bad_arguments_are_named():
    params = tree(0)
    with pytest.raises(TypeError, match="optimizer is float, expected an optax"):
        pack(0.1)
    with pytest.raises(ValueError, match=r"mask has the structure .* expected a prefix"):
        pack(optax.sgd(0.1), mask={"w": True}).init(params)
    with pytest.raises(TypeError, match="mask has a leaf of type int, expected bool"):
        pack(optax.sgd(0.1), mask=1).init(params)
    with pytest.raises(TypeError, match=r"params\['w'\] is str, expected an array"):
        pack(optax.sgd(0.1)).init({**params, "w": "seven"})
    optimizer = pack(optax.sgd(0.1))
    state = optimizer.init(params)
    with pytest.raises(ValueError, match="updates has the structure"):
        optimizer.update({"w": params["w"]}, state, params)
    with pytest.raises(ValueError, match=r"updates\['b'\] has shape \[4\], expected \[3\]"):
        optimizer.update({**params, "b": jnp.ones(4)}, state, params)
    with pytest.raises(TypeError, match=r"differ in dtype.*packing casts nothing"):
        optimizer.update({**params, "b": params["b"].astype("bfloat16")}, state, params)
    with pytest.raises(TypeError, match="state is tuple, expected what"):
        optimizer.update(params, (), params)
    with pytest.raises(ValueError, match="mask is given and params is Packed"):
        pack(optax.sgd(0.1), mask=True).init(Packing.of(params).pack(params))
