"""Layers with state and effects: results, and what is left behind, as from the loop."""

import functools
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import deeppcr
from deeppcr.layers.reading import snapshot
from tests.layers.kinds import WEIGHTS, Plain, X, check_what_is_left, loop, options, square
from tests.problems import assert_agree

ODD = {}
SCALE = 1.0
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


@odd
def a_global():
    global SCALE
    SCALE = 1.0

    def write(x):
        global SCALE
        SCALE = 2.0 * SCALE
        return x

    return between(lambda x: x * SCALE, write, lambda: SCALE)


@odd
def a_global_that_decides_on_the_shape():
    global COPIES
    COPIES = 1

    def write(x):
        global COPIES
        COPIES = 2
        return x

    return between(lambda x: jnp.concatenate([x] * COPIES), write, lambda: COPIES)


@odd
def a_nonlocal():
    scale = 1.0

    def write(x):
        nonlocal scale
        scale = scale * 2.0
        return x

    return between(lambda x: x * scale, write, lambda: scale)


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


@jax.tree_util.register_static
class Prints:
    """A pytree whose code has effects by a class attribute, a property, and a static method."""

    seen = []  # noqa: RUF012

    @property
    def scale(self):
        return self.note()

    @staticmethod
    def note():
        SEEN.append(1)
        return 2.0

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return isinstance(other, Prints)

    def __call__(self, x):
        self.seen.append(1)
        return x * self.scale


@odd
def methods_that_write():
    SEEN.clear()
    Prints.seen.clear()
    return [Prints() for _ in range(3)], lambda: (len(SEEN), len(Prints.seen))


@odd
def a_generator_of_numpy():
    generator = np.random.default_rng(0)
    return [lambda x: x + generator.normal()] * 4, generator.normal


@odd
def a_cache():
    calls = []

    @functools.lru_cache
    def scale(n):
        calls.append(n)
        return 1.0 + len(calls)

    return [lambda x, n=n: x * scale(n) for n in (1, 2, 1, 3)], lambda: calls


@odd
def exceptions_that_are_caught():
    seen = []

    def layer(x):
        try:  # noqa: SIM105
            seen.append(float(x.sum()))
        except Exception:
            pass
        return x * (1 + len(seen))

    return [layer] * 3, lambda: seen


@odd
def code_that_asks_for_tracers():
    seen = []

    def layer(x):
        if not isinstance(x, jax.core.Tracer):
            seen.append(1)
        return jnp.sin(x)

    return [layer] * 3, lambda: seen


@odd
def states_changed_in_place():
    def layer(state):
        state["a"] = jnp.sin(state["a"])
        return state

    given = {"a": X}
    return [lambda x: given, layer, layer], lambda: given


@odd
def arrays_of_numpy_changed_in_place():
    scales = np.ones(3)

    def write(x):
        scales[...] = 2.0 * scales
        return x + scales

    return between(lambda x: x * scales, write, scales.copy)


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


def shows(x):
    jax.debug.print("{}", x[0])
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


# As under jax.jit: these run as the loop if no method is named, and only then.
UNTRACED = ("exceptions_that_are_caught", "code_that_asks_for_tracers", "states_changed_in_place")


@pytest.mark.parametrize("name", ODD)
def test_results_and_what_is_left(name):
    method = "auto" if name in UNTRACED else options(list(ODD).index(name))["method"]
    check_what_is_left(ODD[name], method=method)


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


COPIED = ("a_dict", "a_nonlocal", "a_variable_that_modules_share", "pytrees_that_count")


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


def test_values_that_layers_keep_under_jit():
    """A short list is its loop, so traced values may go from a layer to later ones, and out."""

    def value(run):
        kept = []
        layers = [lambda x: (kept.append(x), jnp.sin(x))[1]] * 3
        layers += [lambda x: x + kept.pop()] * 2
        return square(run(layers, X)) + jnp.sum(kept[0])

    assert_agree(*(jax.jit(lambda run=run: value(run))() for run in (deeppcr.forward, loop)))


def test_layers_that_are_one_object_read_what_has_changed():
    """Each is traced anew, although jax keeps programs of functions that it knows."""
    calls = []

    def layer(x):
        calls.append(1)
        return x * (1.0 + 1.0 / len(calls))

    found = jax.jit(lambda x: deeppcr.forward([layer] * 80, x))(X[:1])
    assert len(calls) == 80
    assert_agree(found, X[:1] * float(np.prod(1.0 + 1.0 / np.arange(1.0, 81.0))))


@pytest.mark.parametrize("name", ["a_dict", "a_global", "objects_that_count"])
def test_results_while_traced(name):
    def value(run):
        layers, _ = ODD[name]()
        return jax.jit(jax.value_and_grad(lambda x: square(run(layers, x))))(X)

    assert_agree(value(deeppcr.forward), value(loop))


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

    assert printed(deeppcr.forward) == printed(loop)


def test_jit_keeps_what_it_read():
    """`jax.jit` reads a dict once; the loop, and so `forward`, goes on with what it read."""

    def run(forward):
        table = {"scale": 1.0}
        layers = [jax.jit(lambda x: x * table["scale"])] * 3
        first = forward(layers, X)
        table["scale"] = 2.0
        return first, forward(layers, X)

    assert_agree(run(deeppcr.forward), run(loop))


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

    layers = [asks, asks, jnp.sin, asks]
    assert_agree(deeppcr.forward(layers, x, method="sequential"), loop(layers, x))


def test_effects_are_the_reason():
    layers = [shows] * 2
    assert "sequential: it has side effects" in str(deeppcr.layers.describe(layers, X))
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
        deeppcr.forward([lambda x: (seen.append(1), x)[1], broken, jnp.sin], X)
    assert seen == [1]
