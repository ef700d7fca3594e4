"""flax modules, nnx and linen: values, gradients and state as from the loop."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import deeppcr
from tests.layers.kinds import chains, loop, options, square
from tests.problems import assert_agree, normal

N = 4
BATCH = normal(9, 4, 3).astype(jnp.float32)  # the dtype that flax's normalisations compute in
CLOSE = 2e-5
agree = partial(assert_agree, tolerance=CLOSE)


class Block(nnx.Module):
    def __init__(self, seed, rate=0.0, norm=False, act=nnx.tanh, width=3):
        rngs = nnx.Rngs(seed)
        self.linear = nnx.Linear(3, width, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs) if norm else None
        self.act = act

    def __call__(self, x):
        y = self.linear(x)
        y = y if self.norm is None else self.norm(y)
        return self.dropout(self.act(y)) * 1.5


def blocks(count=N, mode="train", **options):
    made = [Block(seed, **options) for seed in range(count)]
    for block in made:
        getattr(block, mode)()
    return made


def state(layers):
    """All arrays in modules."""
    leaves = [
        leaf for layer in layers for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(layer)))
    ]
    return [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in leaves
    ]


def twice(run, make, wrap=lambda layer: layer):
    """Two calls, and what they leave in the modules."""
    modules = make()
    layers = [wrap(module) for module in modules]
    return run(layers, BATCH), run(layers, BATCH), state(modules)


class Model(nnx.Module):
    def __init__(self, **options):
        self.blocks = nnx.List([Block(seed, **options) for seed in range(N)])

    def __call__(self, x, run):
        return run(self.blocks, x)


SORTS = {
    "linear": ({}, True),
    "dropout in training": ({"rate": 0.5}, False),
    "statistics in training": ({"norm": True}, False),
    "statistics in evaluation": ({"norm": True, "mode": "eval"}, True),
    "dropout and statistics": ({"norm": True, "rate": 0.5}, False),
}
WRAPS = {
    "modules": lambda module: module,
    "closures": lambda module: lambda x: module(x),
    "bound methods": lambda module: module.__call__,
    "partials": lambda module: partial(Block.__call__, module),
    "nnx.jit inside": lambda module: lambda x: nnx.jit(lambda module, x: module(x))(module, x),
}
HELD = [
    ("modules", "statistics in evaluation"),
    ("closures", "dropout in training"),
    ("bound methods", "statistics in training"),
    ("partials", "linear"),
    ("nnx.jit inside", "dropout and statistics"),
]


@pytest.mark.parametrize(("wrap", "sort"), HELD, ids=[f"{wrap}-{sort}" for wrap, sort in HELD])
def test_nnx_modules_and_what_holds_them(wrap, sort):
    """State advances as in the loop; modules that change nothing are a chain."""
    chosen, alike = SORTS[sort]
    make = partial(blocks, **chosen)
    number = list(WRAPS).index(wrap) + list(SORTS).index(sort)
    agree(
        twice(partial(deeppcr.forward, **options(number)), make, WRAPS[wrap]),
        twice(loop, make, WRAPS[wrap]),
    )
    found = chains([WRAPS[wrap](module) for module in make()], BATCH)
    if alike:
        assert found == [(0, N, 1, "")]
    else:
        assert all("changes" in reason for _, _, _, reason in found)


def test_nnx_grad():
    """Gradients in the module's own structure, under nnx.jit; statistics as from the loop."""

    def step(run, model):
        def loss(model):
            return square(model(BATCH, run))

        return nnx.jit(lambda model: nnx.value_and_grad(loss)(model))(model)

    made = Model(norm=True, rate=0.5)
    copy = nnx.clone(made)
    agree(
        step(partial(deeppcr.forward, method="newton", adjoint="sequential"), made),
        step(loop, copy),
    )
    agree(state([made]), state([copy]))


def test_a_shared_nnx_module_is_not_copied():
    block = Block(0)
    program = jax.make_jaxpr(lambda block, x: deeppcr.forward([block] * 8, x, method="sequential"))(
        block, BATCH
    )
    assert "8,3,3" not in str(program)


class Counter(nnx.Module):
    """State that is static, and state that is not there before the first call."""

    def __init__(self, seed):
        self.linear, self.count = nnx.Linear(3, 3, rngs=nnx.Rngs(seed)), 0

    def __call__(self, x):
        self.count += 1
        return jnp.tanh(self.linear(x)) * self.count


class Late(nnx.Module):
    def __init__(self, seed):
        self.seed = seed

    def __call__(self, x):
        if not hasattr(self, "weight"):
            self.weight = nnx.Param(jnp.full((3, 3), 0.1))
        return x @ self.weight[...]


@pytest.mark.parametrize("kind", [Counter, Late])
def test_nnx_modules_that_change_their_structure(kind):
    def make():
        return [kind(0) for _ in range(3)]

    for run in (deeppcr.forward, partial(deeppcr.forward, method="newton")):
        agree(twice(run, make), twice(loop, make))


STATEFUL = [({"rate": 0.5}, r"rngs\.count"), ({"norm": True}, r"norm\.mean")]


@pytest.mark.parametrize(("chosen", "words"), STATEFUL, ids=["dropout", "statistics"])
def test_stacks_of_what_changes_are_refused(chosen, words):
    """With an example of x at once, without one when they are called; never silently."""
    with pytest.raises(ValueError, match=words):
        deeppcr.stack(blocks(**chosen), BATCH)
    with pytest.raises(ValueError, match=words):
        deeppcr.stack(blocks(**chosen))(BATCH)
    layers = blocks(mode="eval", **chosen)
    agree(deeppcr.stack(layers, BATCH)(BATCH), loop(layers, BATCH))


class Linen(linen.Module):
    rate: float = 0.0
    norm: bool = False
    train: bool = False

    @linen.compact
    def __call__(self, x):
        y = linen.Dense(3)(x)
        y = linen.BatchNorm(use_running_average=not self.train)(y) if self.norm else y
        return linen.Dropout(self.rate, deterministic=not self.train)(linen.tanh(y)) * 1.5


def variables(count=N, **fields):
    return [
        Linen(**fields).init({"params": jax.random.key(i), "dropout": jax.random.key(9)}, BATCH)
        for i in range(count)
    ]


def bound(count=N, rngs=False, mutable=False, **fields):
    keys = [{"dropout": jax.random.key(i)} if rngs else None for i in range(count)]
    return [
        Linen(**fields).bind(v, rngs=k, mutable=mutable)
        for v, k in zip(variables(count, **fields), keys, strict=True)
    ]


LINEN = {
    "bound": bound,
    "bound, statistics in evaluation": partial(bound, norm=True),
    "apply and a list": lambda: (Linen().apply, variables()),
    "closures": lambda: [lambda x, v=v: Linen().apply(v, x) for v in variables()],
}


@pytest.mark.parametrize("name", LINEN)
def test_linen(name):
    chosen = options(list(LINEN).index(name))
    agree(deeppcr.forward(LINEN[name](), BATCH, **chosen), loop(LINEN[name](), BATCH))
    assert chains(LINEN[name](), BATCH) == [(0, N, 1, "")]


class Table(linen.Module):
    table: jax.Array

    def __call__(self, x):
        return jnp.sin(x) * self.table


def test_linen_modules_that_hold_unlike_arrays():
    layers = [(Table(normal(i, 3)).apply, {}) for i in range(3)]
    with pytest.raises(ValueError, match=r"layers\[1\] is not like"):
        deeppcr.stack(layers)
    found = deeppcr.forward(layers, normal(9, 3), method="newton")
    assert_agree(found, deeppcr.forward(layers, normal(9, 3)))


def test_linen_bound_with_random_numbers():
    """The counter in a bound module advances with every call."""

    def run(forward):
        layers = bound(rngs=True, rate=0.5, train=True)
        return forward(layers, BATCH), forward(layers, BATCH)

    agree(run(partial(deeppcr.forward, method="newton")), run(loop))


def test_linen_bound_with_statistics():
    """Variables that a bound module changes stay those of the loop."""

    def run(forward):
        layers = bound(norm=True, train=True, mutable=["batch_stats"])
        return forward(layers, BATCH), [layer.variables["batch_stats"] for layer in layers]

    agree(run(partial(deeppcr.forward, method="newton")), run(loop))
    with pytest.raises(ValueError, match=r"layers\[0\] cannot be traced alone: it is a bound"):
        chains(bound(norm=True, train=True, mutable=["batch_stats"]), BATCH)
