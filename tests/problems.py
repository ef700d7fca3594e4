"""Chains of every kind, and their oracle: `jax.lax.scan` with jax's own derivatives."""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from itertools import cycle, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import deeppcr
from deeppcr.lower import ahead

L = 13  # a prime: no solver can halve it evenly


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """``step(params, carry, x) -> (carry, y)``, closed over ``params``; and how to call `scan`."""

    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    params: Any
    init: Any
    xs: Any = None
    length: int | None = None
    batch_ndim: int = 0
    reverse: bool = False

    def __call__(self, scan, params, init, xs):
        """The last carry and all ys, by ``scan``."""
        return scan(partial(self.step, params), init, xs, self.length, reverse=self.reverse)

    @property
    def arguments(self):
        return self.params, self.init, self.xs

    def astype(self, dtype):
        """The same problem with every floating array in ``dtype``."""
        cast = partial(jax.tree.map, lambda x: x.astype(dtype) if floating(x) else x)
        return dataclasses.replace(
            self, params=cast(self.params), init=cast(self.init), xs=cast(self.xs)
        )


def floating(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def normal(seed, *shape, scale=1.0):
    # `jnp.asarray` compiles a program for every shape; `jax.device_put` does not.
    return jax.device_put(scale * np.random.default_rng([seed, *shape]).normal(size=shape))


def backpropagate(problem, scan):
    """What ``scan`` returns, and gradients to all floating leaves, for random cotangents."""
    leaves, tree = jax.tree.flatten(problem.arguments)
    moves = [floating(leaf) for leaf in leaves]

    def run(moving):
        moving = iter(moving)
        arguments = [next(moving) if m else leaf for leaf, m in zip(leaves, moves, strict=True)]
        outputs = problem(scan, *jax.tree.unflatten(tree, arguments))
        return [y for y in jax.tree.leaves(outputs) if floating(y)], outputs

    @jax.jit
    def both(moving):
        differentiable, pull, outputs = jax.vjp(run, moving, has_aux=True)
        return outputs, pull(
            [normal(i, *y.shape).astype(y.dtype) for i, y in enumerate(differentiable)]
        )[0]

    return both([leaf for leaf, m in zip(leaves, moves, strict=True) if m])


def pairs(*options):
    """As few cases as have every value of every option at least once."""
    count = max(map(len, options))
    cycles = [[*values, *islice(cycle(values), count - len(values))] for values in options]
    return list(zip(*cycles, strict=True))


@cache
def oracle(problem):
    """`backpropagate` by `jax.lax.scan`."""
    return backpropagate(problem, jax.lax.scan)


def on_a_cpu():
    """A context for what is said of CPUs alone: programs are planned for one, and run on it."""
    return jax.default_device(jax.devices("cpu")[0])


def trips(least, budget=L):
    """The iterations of a solve that needs ``least``; those ahead of the first test are free."""
    return max(least, ahead(budget))


def rounding(dtype, operations):
    """How far two programs may be apart, of their largest value, by rounding alone.

    Each of ``operations`` that depend on each other rounds by half a unit in the last place, in
    either program: sums in another order, products that are added at once, functions of another
    library. What a step amplifies comes on top, as a factor of ``operations``.
    """
    return operations * float(jnp.finfo(dtype).eps)


def assert_agree(actual, expected, tolerance=1e-10):
    """Same structure, shapes, dtypes; values to ``tolerance`` of each array's largest entry."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(expected)
    ]
    for path, a, e in zip(paths, jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = (x if hasattr(x, "dtype") else np.asarray(x) for x in (a, e))
        assert a.dtype == e.dtype, path
        assert a.shape == e.shape, path
        if jnp.issubdtype(a.dtype, jnp.inexact):
            a, e = (np.asarray(x).astype(np.promote_types(x.dtype, np.float32)) for x in (a, e))
            largest = np.abs(e[np.isfinite(e)]).max(initial=0) or 1.0
            np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * largest, err_msg=path)
        else:
            np.testing.assert_array_equal(a, e, err_msg=path)


@cache
def compiled_solve(**options):
    return jax.jit(partial(deeppcr.solve, **options))


def solve(chain, z0, **options):
    """`deeppcr.solve`, compiled once for each step and its options."""
    try:
        run = compiled_solve(**options)
    except TypeError:  # an array among the options has no hash
        run = compiled_solve.__wrapped__(**options)
    return run(chain, z0)


def trajectory(chain, z0):
    """All states of a chain, by `jax.lax.scan`; compiled once for each step."""
    return compiled_trajectory(chain.step, chain.length, z0, chain.inputs)


@partial(jax.jit, static_argnums=(0, 1))
def compiled_trajectory(step, length, z0, inputs):
    def body(z, x):
        z = step(z, x)
        return z, z

    return jax.lax.scan(body, z0, inputs, length)[1]


def affine(z, weight, bias):
    return z @ weight + jnp.broadcast_to(bias, (*z.shape[:-1], bias.shape[-1]))


def tanh_layer(_, z, layer):
    return z + 0.5 * jnp.tanh(affine(z, *layer)), None


def relu_layer(_, z, layer):
    weight, bias, back = layer
    return z + jax.nn.relu(affine(z, weight, bias)) @ back, None


def gru(params, h, x):
    from_h, from_x, bias = params
    a, b = h @ from_h, affine(x, from_x, bias)
    n = h.shape[-1]
    gates = jax.nn.sigmoid(a[..., : 2 * n] + b[..., : 2 * n])
    reset, update = gates[..., :n], gates[..., n:]
    h = (1 - update) * jnp.tanh(b[..., 2 * n :] + reset * a[..., 2 * n :]) + update * h
    return h, h


def lstm(params, carry, x):
    from_h, from_x, bias = params
    h, c = carry
    i, f, g, o = jnp.split(h @ from_h + affine(x, from_x, bias), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), {"h": h, "gates": (i * f).sum(-1)}


def residual_block(_, z, kernels):
    """Images [batch, height, width, channels], normalised over each one."""
    first, second = kernels
    conv = partial(
        jax.lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    mean = z.mean((1, 2, 3), keepdims=True)
    spread = jnp.sqrt(z.var((1, 2, 3), keepdims=True) + 0.1)
    normal = (z - jnp.broadcast_to(mean, z.shape)) / jnp.broadcast_to(spread, z.shape)
    z = z + conv(jax.nn.relu(conv(normal, first)), second)
    return z, z.mean((1, 2))


def rk4(params, z, _):
    """Van der Pol's oscillator."""
    stiffness, h = params["stiffness"], params["h"]

    def slope(z):
        return jnp.stack([z[1], stiffness * (1 - z[0] ** 2) * z[1] - z[0]])

    k1 = slope(z)
    k2 = slope(z + h / 2 * k1)
    k3 = slope(z + h / 2 * k2)
    k4 = slope(z + h * k3)
    return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), jnp.sum(z**2)


def odd(params, carry, x):
    """A dict of arrays of unlike shapes, random numbers, integers, booleans; ys of every sort."""
    key, number, skip, value = x["key"], x["number"], x["skip"], x["value"]
    table, matrix = params
    inner = carry["inner"]
    kept = jnp.where(jax.random.bernoulli(key, 0.7, inner[0].shape), inner[0], 0.0)
    new = jnp.tanh(matrix @ kept + table[number] * carry["scale"])
    new = jnp.where(skip, inner[0], new)
    scale = 0.9 * carry["scale"] + 0.1 * jnp.sin(new.sum()) * value
    y = {
        "none": None,
        "constant": 1.0,
        "number": number * 2,
        "skip": jnp.logical_not(skip),
        "old": carry["scale"],
        "new": (new, scale),
        "both": new @ inner[0] * scale,
        "unrelated": value**2,
        "parameter": table[0],
    }
    return {"inner": (new,), "scale": scale}, y


def batch_norm(params, z, x):
    """Examples that interact: the batch is normalised as a whole."""
    gain, weight = params
    centred = z - jnp.broadcast_to(z.mean(0), z.shape)
    spread = jnp.sqrt((centred**2).mean(0) + 0.1)
    z = 0.5 * z + jnp.tanh(gain * centred / jnp.broadcast_to(spread, z.shape) @ weight + x)
    return z, z[0]


@jax.custom_vjp
def doubled_backwards(z):
    """The sine with twice its derivative, which only its own rule gives. Has no jvp."""
    return jnp.sin(z)


doubled_backwards.defvjp(lambda z: (jnp.sin(z), z), lambda z, g: (2 * g * jnp.cos(z),))


@jax.custom_jvp
def tripled(z):
    """The hyperbolic tangent, with three times its derivative."""
    return jnp.tanh(z)


tripled.defjvps(lambda t, out, z: 3 * t * (1 - out**2))


def only_backwards(params, z, x):
    new = doubled_backwards(0.4 * params @ z + x)
    return new, doubled_backwards(new * x + z)


def own_forwards(params, z, x):
    new = tripled(0.3 * params @ z + x)
    return new, jax.nn.relu(new)


def logistic(rate, z, _):
    return rate * z * (1 - z), z


def number(value):
    return jax.device_put(np.float64(value))


def keys(n):
    return jax.random.split(jax.random.key(7), n)


PROBLEMS = {
    "mlp": Problem(
        tanh_layer, None, normal(0, 4), (normal(1, L, 4, 4, scale=0.5), normal(2, L, 4))
    ),
    "relu mlp": Problem(
        relu_layer,
        None,
        normal(0, 3, 4),
        (normal(1, L, 4, 6, scale=0.4), normal(2, L, 6), normal(3, L, 6, 4, scale=0.3)),
        batch_ndim=1,
    ),
    "mlp of a grid": Problem(
        tanh_layer, None, normal(0, 2, 3, 2), (normal(1, L, 2, 2), normal(2, L, 2)), batch_ndim=2
    ),
    "gru": Problem(
        gru,
        (normal(0, 3, 9, scale=0.6), normal(1, 2, 9), normal(2, 9)),
        normal(3, 3),
        normal(4, L, 2),
    ),
    "gru backwards": Problem(
        gru,
        (normal(0, 3, 9, scale=0.6), normal(1, 2, 9), normal(2, 9)),
        normal(3, 1, 3),
        normal(4, L, 1, 2),
        batch_ndim=1,
        reverse=True,
    ),
    "lstm": Problem(
        lstm,
        (normal(0, 3, 12, scale=0.6), normal(1, 2, 12), normal(2, 12)),
        (normal(3, 2, 3), normal(4, 2, 3)),
        normal(5, L, 2, 2),
        batch_ndim=1,
    ),
    "resnet": Problem(
        residual_block,
        None,
        normal(0, 2, 3, 3, 2),
        (normal(1, L, 3, 3, 2, 3, scale=0.2), normal(2, L, 3, 3, 3, 2, scale=0.2)),
        batch_ndim=1,
    ),
    "ode": Problem(
        rk4,
        {"stiffness": number(1.5), "h": number(0.1)},
        jax.device_put(np.array([1.0, -0.5])),
        length=L,
    ),
    "odd": Problem(
        odd,
        (normal(0, 5, 3), normal(1, 3, 3, scale=0.5)),
        {"inner": (normal(2, 3),), "scale": number(0.7)},
        {
            "key": keys(L),
            "number": jax.device_put(np.arange(L) % 5),
            "skip": jax.device_put(np.arange(L) % 4 == 2),
            "value": normal(3, L),
        },
    ),
    "batch norm": Problem(
        batch_norm,
        (number(0.8), normal(0, 3, 3, scale=0.5)),
        normal(1, 4, 3),
        normal(2, L, 4, 3),
        batch_ndim=1,
    ),
    "custom vjp": Problem(
        only_backwards, normal(0, 3, 3, scale=0.6), normal(1, 3), normal(2, L, 3)
    ),
    "custom jvp": Problem(own_forwards, normal(0, 3, 3, scale=0.6), normal(1, 3), normal(2, L, 3)),
    "scalar": Problem(
        lambda a, z, x: (a * jnp.sin(z) + x, z * x), number(0.9), number(0.3), normal(0, L)
    ),
}
