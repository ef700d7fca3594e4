"""What layers are compared with: the values of the loop, and its gradients to all arrays."""

import dataclasses
from functools import partial, reduce
from itertools import product

import jax
import jax.numpy as jnp

import deeppcr
from tests.problems import assert_agree, normal

N = 4
X = normal(9, 3)
BATCH = normal(9, 4, 3)
WEIGHTS = list(normal(0, N, 3, 3, scale=0.5))

METHODS = list(product(["auto", "sequential", "newton"], ["backprop", "pcr"]))


def options(number):
    """What the case of this number in a table is run with: mostly what compiles fastest.

    What layers are made of and how their chain is solved are independent. So every sixth case takes
    another method and adjoint.
    """
    method, adjoint = METHODS[-1 - number // 6 % len(METHODS)]
    chosen = ("sequential", "backprop") if number % 6 else (method, adjoint)
    return dict(zip(("method", "adjoint"), chosen, strict=True))


def loop(layers, x):
    """The oracle. A pair ``(apply, [params, ...])`` is the layers ``(apply, params)``."""
    if isinstance(layers, tuple) and isinstance(layers[1], list):
        layers = [(layers[0], params) for params in layers[1]]
    pairs = [layer if isinstance(layer, tuple) else (call, layer) for layer in layers]
    return reduce(lambda x, pair: pair[0](pair[1], x), pairs, x)


def call(layer, x):
    return layer(x)


def square(x):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))


def gradients(run, make, params, x):
    """A value, and its gradients to the input and to the parameters of ``make(params)``."""
    return jax.value_and_grad(lambda params, x: square(run(make(params), x)), argnums=(0, 1))(
        params, x
    )


def same_as_loop(layers, x=X, tolerance=1e-12, **chosen):
    """Values, without jit."""
    assert_agree(deeppcr.forward(layers, x, **chosen), loop(layers, x), tolerance)


def chains(layers, x=X):
    """The start, the number of steps and the period of each segment, and why it is no chain."""
    found = deeppcr.layers.describe(layers, x).segments
    return [(segment.start, segment.length, segment.period, segment.reason) for segment in found]


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
