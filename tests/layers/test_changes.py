"""Layers with state that is no array: `forward` changes it as the loop does, or refuses to."""

import contextlib
import sys

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.layers.kinds import X, loop
from tests.problems import assert_agree


@contextlib.contextmanager
def right_or_refused():
    """An error has to name the layer."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if "layers[" not in str(error):
            raise


def counting():
    count = 0

    def layer(x):
        nonlocal count
        count += 1
        return x * count

    return layer


class Counting:
    def __init__(self):
        self.count = 0

    def __call__(self, x):
        self.count += 1
        self.last = x
        return jnp.sin(x * self.count)


def listing():
    seen = []

    def layer(x):
        seen.append(x)
        return x * len(seen)

    return layer


def referring():
    state = jax.new_ref(jnp.array(0.0))

    def layer(x):
        state[...] = state[...] + 1.0
        return x * state[...]

    return layer


@pytest.mark.parametrize(
    "make", [counting, Counting, listing, referring], ids=["nonlocal", "object", "list", "ref"]
)
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_side_effects_are_the_loop_s_or_an_error(make, shared):
    def twice(run):
        layers = [make()] * 3 if shared else [make() for _ in range(3)]
        return run(layers, X), run(layers, X)

    with right_or_refused():
        assert_agree(twice(deeppcr.forward), twice(loop))


def test_no_tracer_is_left_in_objects():
    layers = [Counting() for _ in range(3)]
    with right_or_refused():
        deeppcr.forward(layers, X)
    assert not any(isinstance(getattr(layer, "last", None), jax.core.Tracer) for layer in layers)


def test_layers_before_one_that_raises_are_called():
    seen = []

    def broken(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        deeppcr.forward(
            [lambda x: (seen.append(1), x)[1], broken, lambda x: (seen.append(2), x)[1]], X
        )
    assert seen == [1]


def test_long_lists_with_state_are_read_once():
    """What comes after a layer that changes something is not read again and again."""
    calls = []

    class Tells:
        def __init__(self, weight):
            self.weight, self.count = weight, 0

        def __call__(self, x):
            self.count += 1
            return x * self.weight

    def profile(frame, event, _):
        if event == "call" and frame.f_code is Tells.__call__.__code__:
            calls.append(1)

    layers = [Tells(0.5) for _ in range(40)]
    sys.setprofile(profile)
    try:
        deeppcr.forward(layers, X)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 3 * len(layers)
