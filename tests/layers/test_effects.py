"""Layers with effects, and modules that share what they change: all happens as in the loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import deeppcr
from tests.layers.kinds import X, check_what_is_left, loop, options

ODD = {}


def odd(make):
    """``make()`` returns layers, and a function of what they leave behind."""
    ODD[make.__name__] = make
    return make


class Noisy(nnx.Module):
    """Plain Python state in a module."""

    def __init__(self, seed, state):
        self.linear, self.state = (
            nnx.Linear(3, 3, rngs=nnx.Rngs(seed), param_dtype=X.dtype),
            nnx.static(state),
        )

    def __call__(self, x):
        self.state["count"] = self.state["count"] + 1
        return jnp.tanh(self.linear(x)) * self.state["count"]


@odd
def python_state_in_nnx_modules():
    state = {"count": 0}
    return [Noisy(i, state) for i in range(4)], lambda: state


class Shares(nnx.Module):
    def __init__(self, shared):
        self.shared = shared

    def __call__(self, x):
        self.shared[...] = self.shared[...] + jnp.mean(x)
        return jnp.sin(x * self.shared[...])


class Reads(Shares):
    def __call__(self, x):
        return jnp.sin(x * self.shared[...])


@odd
def a_variable_that_nnx_modules_share():
    shared = nnx.Variable(jnp.array(1.0))
    layers = [
        Reads(shared),
        Reads(shared),
        Shares(shared),
        Reads(shared),
        Reads(shared),
        Shares(shared),
        Reads(shared),
    ]
    return layers, lambda: shared[...]


@odd
def a_variable_in_closures():
    shared = nnx.Variable(jnp.array(1.0))

    def write(x):
        shared[...] = shared[...] * 2.0
        return x

    return [lambda x: x * shared[...], write, *[lambda x: x * shared[...]] * 2], lambda: shared[...]


@odd
def statistics_that_nnx_modules_share():
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    fixed = nnx.BatchNorm(3, rngs=nnx.Rngs(0), use_running_average=True)
    fixed.mean, fixed.var = norm.mean, norm.var
    layers = [fixed, fixed, norm, fixed, fixed]
    return [
        lambda x, m=m: m(x[None].astype(jnp.float32))[0].astype(x.dtype) for m in layers
    ], lambda: (
        norm.mean[...],
        norm.var[...],
    )


@odd
def random_numbers_that_nnx_modules_share():
    rngs = nnx.Rngs(0)
    return [nnx.Dropout(0.5, rngs=rngs) for _ in range(4)], lambda: rngs.default.count[...]


@odd
def references():
    state = jax.new_ref(jnp.array(1.0))

    def layer(x):
        state[...] = state[...] + 1.0
        return x * state[...]

    return [layer] * 3, lambda: state[...]


# Effects.


@odd
def debug_callbacks():
    seen = []

    def layer(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum(), ordered=True)
        return jnp.sin(x)

    return [layer] * 4, lambda: (jax.effects_barrier(), seen)[1]


@odd
def io_callbacks():
    seen = []

    def push(x):
        seen.append(1.0)
        return np.asarray(len(seen), x.dtype)

    def layer(x):
        return x * jax.experimental.io_callback(
            push, jax.ShapeDtypeStruct((), x.dtype), x, ordered=True
        )

    return [layer] * 3, lambda: seen


@odd
def impure_pure_callbacks():
    seen = []

    def push(x):
        seen.append(1.0)
        return np.asarray(x)

    return [
        lambda x: jnp.sin(jax.pure_callback(push, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    ] * 3, lambda: seen


@pytest.mark.parametrize("name", ODD)
def test_results_and_what_is_left(name):
    check_what_is_left(ODD[name], method=options(list(ODD).index(name))["method"])


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


def test_effects_are_the_reason():
    assert "sequential: it has side effects" in str(
        deeppcr.layers.describe(debug_callbacks()[0], X)
    )


def test_effects_in_stacks_are_refused():
    with pytest.raises(ValueError, match="effects"):
        deeppcr.stack(debug_callbacks()[0], X)
    layer = debug_callbacks()[0][0]
    with pytest.raises(ValueError, match="effects"):
        deeppcr.stack([layer] * 2)(X)
