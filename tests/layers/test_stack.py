"""`stack`: a pytree of stacked layers, to train with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import deeppcr
from tests.layers.kinds import WEIGHTS, Dense, X, closure, dense, denses, loop, square
from tests.problems import assert_agree, normal

N = 5
BATCH = normal(9, 4, 3)


KINDS = {
    "a period": lambda: [layer for m in denses(N) for layer in (m, jnp.sin, lambda x: 0.5 * x)],
    "one layer": lambda: denses(1),
    "numpy": lambda: [closure(np.asarray(w)) for w in WEIGHTS],
    "stacks": lambda: [deeppcr.stack(denses(2)), deeppcr.stack([dense(8), dense(9)])],
}


@pytest.mark.parametrize("name", KINDS)
def test_agrees_with_the_loop(name):
    layers = KINDS[name]()
    stack, expected = deeppcr.stack(layers), loop(layers, BATCH)
    assert_agree(stack(BATCH), expected)
    assert jax.tree.structure(deeppcr.stack(layers, BATCH)) == jax.tree.structure(stack)
    assert_agree(loop(deeppcr.unstack(stack), BATCH), expected)
    assert len(stack) == len(deeppcr.unstack(stack)) == len(layers)
    assert_agree(deeppcr.stack(stack), stack)


@pytest.mark.parametrize(("method", "adjoint"), [("auto", "auto"), ("newton", "sequential")])
def test_gradients_are_stacks(method, adjoint):
    layers = denses(N)
    stack = deeppcr.stack(layers)
    gradient = jax.jit(
        jax.grad(lambda stack: square(stack(BATCH, method=method, adjoint=adjoint)))
    )(stack)
    assert isinstance(gradient, deeppcr.Stack)
    assert jax.tree.structure(gradient) == jax.tree.structure(stack)
    wanted = jax.grad(lambda layers: square(loop(layers, BATCH)))(layers)
    assert_agree(deeppcr.unstack(gradient), wanted)
    assert_agree(deeppcr.stack(wanted), gradient)


def test_is_a_pytree():
    stack = deeppcr.stack(denses(N))
    leaves, structure = jax.tree.flatten(stack)
    assert [leaf.shape for leaf in leaves] == [(N, 3, 3), (N, 3)]
    assert_agree(jax.tree.unflatten(structure, leaves), stack)
    other = deeppcr.stack([dense(10 + i) for i in range(N)])
    assert jax.tree.structure(other) == structure
    assert hash(jax.tree.structure(other)) == hash(structure)
    assert jax.tree.structure(deeppcr.stack(denses(N - 1))) != structure
    assert (
        jax.tree.structure(deeppcr.stack([dense(i, static="relu") for i in range(N)])) != structure
    )
    difference = jax.tree.map(jnp.subtract, other, stack)
    assert_agree(jax.tree.map(jnp.add, stack, difference), other)
    masks = jax.tree.map(lambda leaf: leaf.ndim > 2, stack)
    assert jax.tree.leaves(masks) == [True, False]
    assert jax.tree.leaves(jax.tree.map(lambda leaf: None, stack)) == []
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(stack)]
    assert len(set(paths)) == 2
    assert_agree(jax.jit(jax.checkpoint(stack))(BATCH), stack(BATCH))
    assert stack == stack != other


def test_unstack_gives_the_layers_back():
    layers = [layer for m in denses(N) for layer in (m, jax.nn.relu)]
    back = deeppcr.unstack(deeppcr.stack(layers))
    assert_agree(back[::2], layers[::2])
    assert all(isinstance(layer, Dense) for layer in back[::2])
    assert all(layer is jax.nn.relu for layer in back[1::2])
    assert_agree(deeppcr.stack(back), deeppcr.stack(layers))


def test_shared_arrays_are_kept_once():
    layer = dense(0)
    stack = deeppcr.stack([layer] * N)
    assert [leaf.shape for leaf in jax.tree.leaves(stack)] == [(3, 3), (3,)]
    gradient = jax.jit(jax.grad(lambda stack: square(stack(BATCH, adjoint="sequential"))))(stack)
    expected = jax.grad(lambda layer: square(loop([layer] * N, BATCH)))(layer)
    assert_agree(jax.tree.leaves(gradient), jax.tree.leaves(expected))


def affine(b, w, x):
    return jnp.tanh(x @ w) + b


def in_pairs(params, x):
    return affine(params["b"], params["w"], x)


def each_with_its_own(b, w):
    return lambda x: affine(b, w, x)


def all_with_one(b):
    return [lambda x, w=w: affine(b, w, x) for w in WEIGHTS]


class Block(nnx.Module):
    def __init__(self, b, w):
        self.b, self.w = b, nnx.Param(w)

    def __call__(self, x):
        return affine(self.b[...], self.w[...], x)


ZERO = jnp.zeros(3)
PARAMS = {"w": WEIGHTS[0], "b": ZERO}
APART = {
    "partials": lambda: [jax.tree_util.Partial(affine, ZERO, w) for w in WEIGHTS],
    "parameters": lambda: (in_pairs, [{"w": w, "b": ZERO} for w in WEIGHTS]),
    "the same parameters": lambda: (in_pairs, [PARAMS] * 4),
    "functions": lambda: [each_with_its_own(ZERO, w) for w in WEIGHTS],
    "modules": lambda: [Block(nnx.Param(ZERO), w) for w in WEIGHTS],
}
ONE_PARAM = nnx.Param(ZERO)
TIED = {
    "functions of one variable": lambda: all_with_one(ZERO),
    "modules with one variable": lambda: [Block(ONE_PARAM, w) for w in WEIGHTS],
    "one module": lambda: [dense(0)] * 4,
    "one pair": lambda: [(in_pairs, PARAMS)] * 4,
    "one partial in a period": lambda: (
        [jax.tree_util.Partial(affine, ZERO, WEIGHTS[0]), jnp.sin] * 4
    ),
}


@pytest.mark.parametrize("name", [*APART, *TIED])
def test_what_begins_as_one_array_is_one_only_in_one_layer_or_variable(name):
    layers = (APART | TIED)[name]()
    stack = deeppcr.stack(layers)
    biases = [leaf.shape for leaf in jax.tree.leaves(stack) if leaf.shape in ((3,), (4, 3))]
    assert biases == [(3,) if name in TIED else (4, 3)]
    inside = jax.jit(lambda: deeppcr.stack(layers))()
    back = deeppcr.unstack(stack)
    for other in (inside, deeppcr.stack(back)):
        assert jax.tree.structure(other) == jax.tree.structure(stack)
        assert_agree(other, stack)
    assert_agree(loop(back, X), loop(layers, X))


def test_layers_that_begin_alike_are_trained_as_the_list():
    layers = APART["partials"]()

    def trained(layers):
        gradient = jax.grad(lambda layers: square(deeppcr.forward(layers, X)))(layers)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, gradient)

    stack, inside = deeppcr.stack(layers), jax.jit(deeppcr.stack)(layers)
    assert jax.tree.structure(stack) == jax.tree.structure(inside)
    assert_agree(jax.jit(trained)(stack), deeppcr.stack(jax.jit(trained)(layers)))


def of_nothing():
    def layer(x):
        return x * later

    return layer
    later = 1.0


def itself():
    def layer(x, times=1):
        return layer(jnp.sin(x), times - 1) if times else x

    return layer


WRONG = {
    "empty": (list, ValueError, "empty"),
    "fields": (lambda: [dense(0), dense(1, static="relu")], ValueError, r"layers\[1\]"),
    "a last one": (lambda: [*denses(3), jnp.sin], ValueError, r"layers\[3\]"),
    "shapes": (lambda: [dense(0), dense(1, 3, 4)], ValueError, r"layers\[1\]"),
    "a variable without a value": (lambda: [of_nothing()], TypeError, "no value yet"),
    "a function in itself": (lambda: [itself()], TypeError, "holds itself"),
    "static arrays": (
        lambda: [dense(0, static=np.array([i, 1])) for i in range(2)],
        (TypeError, ValueError),
        r"layers\[",
    ),
}


@pytest.mark.parametrize(("layers", "error", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_stacked(layers, error, words):
    with pytest.raises(error, match=words):
        deeppcr.stack(layers())


def test_what_changes_the_state_is_refused():
    layers = [dense(0, 3, 2)]
    with pytest.raises(ValueError, match="shape of the state"):
        deeppcr.stack(layers, X)
    with pytest.raises((TypeError, ValueError), match=r"state|carry"):
        deeppcr.stack(layers)(X)
