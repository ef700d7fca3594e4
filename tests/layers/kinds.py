"""What layers are compared with: the values of the loop, and its gradients to all arrays."""

import dataclasses
from functools import partial, reduce
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

import deeppcr
from tests.problems import assert_agree, normal, rounding

N = 4
X = normal(9, 3)
BATCH = normal(9, 4, 3)
WEIGHTS = list(normal(0, N, 3, 3, scale=0.5))

METHODS = list(product(["auto", "sequential", "newton"], ["backprop", "pcr"]))
FLOAT32 = rounding(jnp.float32, 16)  # some short layers


def options(number):
    """What the case of this number in a table is run with: mostly what compiles fastest.

    What layers are made of and how their chain is solved are independent. So every sixth case takes
    another method and adjoint.
    """
    method, adjoint = METHODS[-1 - number // 6 % len(METHODS)]
    chosen = ("sequential", "backprop") if number % 6 else (method, adjoint)
    return dict(zip(("method", "adjoint"), chosen, strict=True))


def call(layer, x):
    return layer[0](layer[1], x) if isinstance(layer, tuple) else layer(x)


def loop(layers, x):
    """The oracle. A pair ``(apply, [params, ...])`` is the layers ``(apply, params)``."""
    if isinstance(layers, tuple) and isinstance(layers[1], list):
        layers = [(layers[0], params) for params in layers[1]]
    return reduce(lambda x, layer: call(layer, x), layers, x)


def square(x):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))


def gradients(run, make, params, x):
    """A value, and its gradients to the input and to the parameters of ``make(params)``."""
    return jax.value_and_grad(lambda params, x: square(run(make(params), x)), argnums=(0, 1))(
        params, x
    )


def tangents(run, make, params, x):
    """A value, and its derivative along one direction of the input and of the parameters."""
    along = jax.tree.map(lambda leaf: normal(5, *leaf.shape), (params, x))
    return jax.jvp(lambda params, x: run(make(params), x), (params, x), along)


def check(make, params=None, x=X, tolerance=1e-10, **chosen):
    """``make(params)`` are layers; `deeppcr.forward` has to do with them what the loop does."""
    params = WEIGHTS if params is None else params
    runs = partial(deeppcr.forward, **chosen), loop
    both = jax.jit(lambda params, x: [gradients(run, make, params, x) for run in runs])
    assert_agree(*both(params, x), tolerance)


def same_as_loop(make, x=X, tolerance=1e-12, **chosen):
    """Values and the gradient to ``x``, without jit, of layers made anew for each."""
    actual = deeppcr.forward(make(), x, **chosen)
    assert_agree(actual, loop(make(), x), tolerance)


def same_gradient(make, x=X, tolerance=1e-12, **chosen):
    layers = make()
    actual = jax.grad(lambda x: square(deeppcr.forward(layers, x, **chosen)))(x)
    assert_agree(actual, jax.grad(lambda x: square(loop(layers, x)))(x), tolerance)


def chains(layers, x=X):
    """The start, the number of steps and the period of each segment, and why it is no chain."""
    found = deeppcr.layers.describe(layers, x).segments
    return [(segment.start, segment.length, segment.period, segment.reason) for segment in found]


def is_one_chain(layers, x=X, period=1):
    return chains(layers, x) == [(0, len(layers) // period, period, "")]


@partial(jax.tree_util.register_dataclass, data_fields=["weight", "bias"], meta_fields=["static"])
@dataclasses.dataclass(frozen=True)
class Dense:
    weight: jax.Array
    bias: jax.Array
    static: object = "tanh"

    def __call__(self, x):
        return getattr(jax.nn, self.static)(self.affine(x))

    def affine(self, x):
        y = x @ self.weight
        return y + jnp.broadcast_to(self.bias, y.shape)


def dense(seed, width=3, out=3, static="tanh"):
    return Dense(normal(seed, width, out, scale=0.6), normal(seed, out), static)


def denses(count):
    return [dense(i) for i in range(count)]


def closure(weight):
    return lambda x: jnp.tanh(x @ weight)


class Plain:
    """An object that jax knows nothing of: it calls what it was given."""

    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


def left_behind(run, make, x=X):
    """``make()`` returns layers, and a function of what they leave behind: two calls, and that."""
    layers, look = make()
    result = [run(layers, x), run(layers, x)]
    return result, jax.tree.map(np.asarray, look())


def check_what_is_left(make, tolerance=FLOAT32, **chosen):
    """Results and what is left behind, as from the loop."""
    run = partial(deeppcr.forward, **chosen)
    assert_agree(left_behind(run, make), left_behind(loop, make), tolerance)
