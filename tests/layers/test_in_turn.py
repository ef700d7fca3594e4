"""Layers with state and effects: results, and what is left behind, as from the loop."""

import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import deeppcr
from deeppcr.layers.reading import snapshot
from tests.layers.kinds import WEIGHTS, Plain, X, loop, same_as_loop
from tests.problems import assert_agree, rounding

ODD = {}
SEEN = []


def odd(make):
    """``make()`` returns layers, and a function of what they leave behind."""
    ODD[make.__name__] = make
    return make


def between(read, write, look):
    """Layers that read what others write."""
    return [read, read, write, read, read, write, write, read, read], look


@odd
def a_dict():
    table = {"scale": 1.0}

    def write(x):
        table["scale"] = table["scale"] * 2.0
        return x + 1.0

    return between(lambda x: x * table["scale"], write, lambda: table)


class Counts:
    def __init__(self):
        self.count = 0

    def __call__(self, x):
        self.count += 1
        self.last = x
        return jnp.sin(x * self.count)


@odd
def objects_that_count():
    layers = [Counts()] * 3 + [Counts()]
    return layers, lambda: [layer.count for layer in layers]


class Registered(Counts):
    """A pytree whose count is part of its structure."""


jax.tree_util.register_pytree_node(
    Registered, lambda m: ((), m.count), lambda count, _: vars_of(Registered(), count)
)


def vars_of(layer, count):
    layer.count = count
    return layer


@odd
def pytrees_that_count():
    layers = [Registered() for _ in range(4)]
    return layers, lambda: [layer.count for layer in layers]


@odd
def arrays_of_numpy_changed_in_place():
    scales = np.ones(3)

    def write(x):
        scales[...] = 2.0 * scales
        return x + scales

    return between(lambda x: x * scales, write, scales.copy)


@odd
def numbers_of_numpy_changed_in_place():
    count, offset = np.zeros((), np.int64), np.zeros(3)

    def layer(x):
        count[...] += 1
        y = x * int(count) + offset
        offset[:] += 1.0
        return y

    return [layer] * 4, lambda: (count.copy(), offset.copy())


@odd
def references():
    state = jax.new_ref(jnp.array(1.0))

    def layer(x):
        state[...] = state[...] + 1.0
        return x * state[...]

    return [layer] * 3, lambda: state[...]


@odd
def debug_callbacks():
    SEEN.clear()
    return [tell] * 4, lambda: (jax.effects_barrier(), list(SEEN), SEEN.clear())[1]


def tell(x):
    jax.debug.callback(told, x.sum(), ordered=True)
    return jnp.sin(x)


def told(value):
    SEEN.append(float(value))


class Writes(nnx.Module):
    def __init__(self, shared):
        self.shared = shared

    def __call__(self, x):
        self.shared[...] = self.shared[...] + jnp.mean(x)
        return jnp.sin(x * self.shared[...])


class Reads(Writes):
    def __call__(self, x):
        return jnp.sin(x * self.shared[...])


@odd
def a_variable_that_modules_share():
    shared = nnx.Variable(jnp.ones((), X.dtype))
    return between(Reads(shared), Writes(shared), lambda: shared[...])


@odd
def random_numbers_that_modules_share():
    rngs = nnx.Rngs(0)
    return [nnx.Dropout(0.5, rngs=rngs) for _ in range(4)], lambda: rngs.default.count[...]


def left_behind(run, make):
    """Two calls, and what they leave behind."""
    layers, look = make()
    result = [run(layers, X), run(layers, X)]
    return result, jax.tree.map(np.asarray, look())


@pytest.mark.parametrize("name", ODD)
def test_results_and_what_is_left(name):
    method = ["sequential", "newton"][list(ODD).index(name) % 2]
    run = partial(deeppcr.forward, method=method)
    actual, expected = left_behind(run, ODD[name]), left_behind(loop, ODD[name])
    assert_agree(actual, expected, rounding(jnp.float32, 16))


@pytest.mark.parametrize("method", ["auto", "newton"])
def test_states_that_layers_change_in_place(method):
    def change(state):
        state["a"] = jnp.sin(state["a"])
        state["b"].append(jnp.cos(state["a"]))
        return state

    def run(forward):
        given = {"a": X, "b": []}
        return forward([change] * 3, given), given

    assert_agree(run(partial(deeppcr.forward, method=method)), run(loop))


COPIED = ("a_dict", "a_variable_that_modules_share", "pytrees_that_count")


@pytest.mark.parametrize("name", [*COPIED, "random_numbers_that_modules_share"])
def test_what_changes_is_described_on_a_copy(name):
    layers, look = ODD[name]()
    before = jax.tree.map(np.asarray, look())
    found = deeppcr.layers.describe(layers, X).segments
    assert any("calling it changes" in segment.reason for segment in found)
    assert_agree(jax.tree.map(np.asarray, look()), before)


def test_an_array_is_held_as_long_as_its_copy():
    """Otherwise Python may give its id to an array of another dtype with equal numbers."""
    copies, array = {}, np.ones(3)
    held, copy = weakref.ref(array), snapshot(array, copies)
    assert snapshot(array, copies) is copy
    del array
    assert held() is not None


def test_layers_that_are_one_object_read_what_has_changed():
    """Each is traced anew, although jax keeps programs of functions that it knows."""
    calls = []

    def layer(x):
        calls.append(1)
        return x * (1.0 + 1.0 / len(calls))

    found = jax.jit(lambda x: deeppcr.forward([layer] * 80, x))(X[:1])
    assert len(calls) == 80
    assert_agree(found, X[:1] * float(np.prod(1.0 + 1.0 / np.arange(1.0, 81.0))))


def test_what_is_printed(capsys):
    """Once for each call of the loop, in its order."""

    def make(i):
        def layer(x):
            print("layer", i)
            jax.debug.print("x {}", i, ordered=True)
            return jnp.sin(x)

        return layer

    def printed(run):
        run([make(i) for i in range(3)], X)
        jax.effects_barrier()
        return capsys.readouterr().out

    assert printed(partial(deeppcr.forward, method="sequential")) == printed(loop)


def test_donated_states():
    def run(forward):
        x = jnp.array(X)
        result = forward([jax.jit(lambda x: jnp.sin(x), donate_argnums=0)] * 3, x)
        return result, x.is_deleted()

    assert_agree(run(partial(deeppcr.forward, method="sequential")), run(loop))


@pytest.mark.parametrize("x", [np.asarray(X), np.float32(0.5), 0.5], ids=["array", "scalar", "0.5"])
def test_states_that_are_not_of_jax(x):
    def asks(x):
        return x * 2 if isinstance(x, np.ndarray) else x * 3 if isinstance(x, float) else x * 4

    same_as_loop([asks, asks, jnp.sin, asks], x, method="sequential")


def shows(x):
    jax.debug.print("{}", x[0])
    return jnp.sin(x)


def test_effects_are_the_reason():
    assert "sequential: it has side effects" in str(deeppcr.layers.describe([shows] * 2, X))
    with pytest.raises(ValueError, match=r"layers\[0\] cannot be traced alone.*float"):
        deeppcr.layers.describe([lambda x: x * float(x.sum())], X)


def test_effects_in_stacks_are_refused():
    with pytest.raises(ValueError, match="effects"):
        deeppcr.stack([shows] * 2, X)
    with pytest.raises(ValueError, match="effects"):
        deeppcr.stack([shows] * 2)(X)
    with pytest.raises(ValueError, match="its state"):
        deeppcr.stack([a_dict()[0][2]] * 2, X)
    with pytest.raises(TypeError, match=r"layers\[1\].*Plain.*no pytree"):
        deeppcr.stack([jnp.sin, Plain(WEIGHTS[0])])


def test_layers_before_one_that_raises_are_called():
    seen = []

    def broken(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        deeppcr.forward([lambda x: (seen.append(1), x)[1], partial(broken), jnp.sin], X)
    assert seen == [1]
