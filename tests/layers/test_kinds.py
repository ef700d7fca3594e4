"""Every kind of layer against the loop: values, and gradients to all arrays."""

import collections
import enum
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.layers.kinds import (
    BATCH,
    WEIGHTS,
    Dense,
    N,
    Plain,
    X,
    chains,
    check,
    closure,
    dense,
    gradients,
    is_one_chain,
    loop,
    options,
    same_as_loop,
    square,
    tangents,
)
from tests.problems import assert_agree, normal, rounding


def act(weight, x):
    return jnp.tanh(x @ weight)


def act_last(x, *, weight, scale=1.0):
    return jnp.tanh(scale * (x @ weight))


def keyword_only(weight):
    def layer(x, *, weight=weight, scale=0.9):
        return scale * jnp.tanh(x @ weight)

    return layer


def in_scan(weight):
    inner = jax.jit(lambda x: jnp.tanh(x @ weight))
    return lambda x: jax.lax.scan(lambda c, _: (inner(c), None), x, None, 2)[0]


def in_cond(weight):
    inner = jax.jit(lambda x: jnp.tanh(x @ weight))
    return lambda x: jax.lax.cond(x.sum() > 0, inner, lambda x: x - inner(x), x)


def over_a_function(weight):
    def inner(x):
        return x @ weight

    def layer(x):
        return jnp.sin(inner(x)) + inner(jnp.cos(x))

    return layer


def with_attribute(weight):
    def inner(x):
        return jnp.sin(x)

    inner.weight = weight
    return lambda x: inner(x) @ inner.weight


def recursive(weight):
    def layer(x, left=2):
        return x if left == 0 else jnp.tanh(layer(x, left - 1) @ weight)

    return layer


def mutually_recursive(weight):
    def even(x, left=2):
        return x if left == 0 else odd(x, left - 1) @ weight

    def odd(x, left):
        return jnp.sin(even(x, left - 1))

    return even


def with_an_empty_cell(weight):
    def layer(x):
        return x @ weight if weight is not None else never

    if weight is None:
        never = 0
    return layer


def with_a_local_import(weight):
    import jax.numpy as local

    return lambda x: local.tanh(x @ weight)


class Mode(enum.Enum):
    UP = 1
    DOWN = 2


Pair = collections.namedtuple("Pair", "weight scale")


def odd_containers(weight):
    pair, table, order = Pair(weight, 0.7), {"b": weight, "a": [weight.T, None, "name"]}, range(2)
    mode, members = Mode.DOWN, frozenset([1, 2])

    def layer(x):
        x = x @ pair.weight * pair.scale
        for i in order:
            x = jnp.sin(x @ (table["b"] if i else table["a"][0]))
        return x if mode is Mode.UP or 1 not in members else -x

    return layer


def in_order(params, x):
    """Its parameters one after another, in the order of the dict."""
    for name, weight in params.items():
        x = jnp.tanh(x @ weight) * (2.0 if name == "a" else 0.7)
    return x


def mixed_leaves(params, x):
    name, count, function, weight, nothing = params["leaves"]
    if nothing is not None or type(count) is not int:
        raise TypeError
    return function(getattr(jnp, name)(x @ weight)) * float(count)


class Affine:
    """State in attributes."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return jnp.tanh(x @ self.weight)

    def apply(self, x, scale=0.5):
        return scale * self(x)

    @classmethod
    def wave(cls, x):
        return jnp.sin(x) + 0.1


def each(layer):
    return lambda weights: [layer(weight) for weight in weights]


KINDS = {
    "lambdas with defaults": lambda weights: [lambda x, w=w: jnp.tanh(x @ w) for w in weights],
    "closures": each(closure),
    "keyword only defaults": each(keyword_only),
    "partials": each(lambda w: partial(act, w)),
    "partials by keyword": each(lambda w: partial(act_last, weight=w, scale=0.5)),
    "partials of jax": each(lambda w: jax.tree_util.Partial(act, w)),
    "objects": each(Affine),
    "bound methods of objects": each(lambda w: Affine(w).apply),
    "class methods between": lambda ws: [Affine(ws[0]), Affine.wave, Affine.wave, Affine(ws[1])],
    "bound methods of pytrees": each(lambda w: Dense(w, w[0]).affine),
    "jitted closures": each(lambda w: jax.jit(closure(w))),
    "jitted twice": each(lambda w: jax.jit(jax.jit(closure(w)))),
    "objects of jitted closures": each(lambda w: Plain(jax.jit(closure(w)))),
    "jitted closures in a scan": each(in_scan),
    "jitted closures in a cond": each(in_cond),
    "objects with jitted closures in a cond": each(lambda w: Plain(jax.jit(in_cond(w)))),
    "checkpointed closures": each(lambda w: jax.checkpoint(closure(w))),
    "functions over functions": each(over_a_function),
    "functions with attributes": each(with_attribute),
    "recursion": each(recursive),
    "mutual recursion": each(mutually_recursive),
    "empty cells": each(with_an_empty_cell),
    "local imports": each(with_a_local_import),
    "odd containers": each(odd_containers),
    "pairs": each(lambda w: (act, w)),
    "pairs of dicts in their order": each(lambda w: (in_order, {"b": w, "a": w.T})),
    "apply and a list": lambda weights: (act, list(weights)),
    "apply and a list of dicts": lambda weights: (in_order, [{"b": w, "a": w.T} for w in weights]),
    "leaves of all sorts": each(
        lambda w: (mixed_leaves, {"leaves": ["tanh", 2, jnp.sin, w, None]})
    ),
    "a generator": lambda weights: (closure(w) for w in weights),
    "one weight in all": lambda weights: [closure(weights[0])] * N,
    "a weight in all, another in each": lambda ws: [
        lambda x, w=w: jnp.tanh(x @ w) @ ws[0] for w in ws
    ],
}


# Kinds that share a program: one of many chains compiles faster than many of one.
GROUPS = [list(KINDS)[start::4] for start in range(4)]


@pytest.mark.parametrize("names", GROUPS, ids=range(4))
def test_agrees_with_the_loop(names):
    """Gradients where the method is another than the loop; else tangents say what is traced."""

    def both(name, weights, x):
        chosen = options(list(KINDS).index(name))
        of = tangents if set(chosen.values()) == {"sequential", "backprop"} else gradients
        runs = partial(deeppcr.forward, **chosen), loop
        return [of(run, KINDS[name], weights, x) for run in runs]

    found = jax.jit(lambda weights, x: {name: both(name, weights, x) for name in names})(WEIGHTS, X)
    actual, expected = ({name: each[i] for name, each in found.items()} for i in (0, 1))
    assert_agree(actual, expected, 1e-10)


@pytest.mark.parametrize(("method", "adjoint"), [("auto", "pcr"), ("newton", "backprop")])
def test_methods_and_adjoints(method, adjoint):
    """Gradients in the user's own structure: a list of pytrees, a shared array, a list of dicts."""

    def make(params):
        modules, shared, dicts = params
        table = [
            (lambda p, x: jnp.sin(x @ p["w"]) + jnp.broadcast_to(p["b"], x.shape), p) for p in dicts
        ]
        return [*modules, *[lambda x, m=m: jnp.sin(m(x)) * shared for m in modules], *table]

    dicts = [{"w": w, "b": w[0]} for w in WEIGHTS[:2]]
    check(
        make,
        ([dense(i) for i in range(2)], jnp.array(0.9), dicts),
        BATCH,
        method=method,
        adjoint=adjoint,
    )


ALIKE = """
lambdas with defaults|closures|keyword only defaults|partials|partials by keyword
partials of jax|objects|bound methods of objects|bound methods of pytrees|jitted closures
jitted closures in a scan|jitted closures in a cond|checkpointed closures
functions over functions|recursion|local imports|pairs|apply and a list of dicts
leaves of all sorts|one weight in all|a weight in all, another in each
"""


@pytest.mark.parametrize("name", ALIKE.strip().replace("\n", "|").split("|"))
def test_alike_layers_are_one_chain(name):
    assert chains(KINDS[name](WEIGHTS)) == [(0, N, 1, "")]


def test_numpy_arrays_and_numbers():
    """Arrays that the layer's Python code reads stay what they were."""
    orders = [np.random.default_rng(i).permutation(3) for i in range(3)]

    def make():
        return [
            *[lambda x, order=order: x[np.argsort(order)] for order in orders],
            *[
                lambda x, m=m: x[m].sum() + x
                for m in np.array([[True, False, True], [False, True, True]])
            ],
            *[lambda x, w=w: jnp.tanh(x @ w) for w in np.asarray(WEIGHTS)],
            *[lambda x, c=c: c * x for c in (0.5, 0.5, 2.0)],
            *[lambda x, c=c: x + c for c in np.arange(3.0)],
            *[lambda x, n=n: x.reshape(n)[0] * x for n in (np.array([1, 3]), np.array([3, 1]))],
        ]

    same_as_loop(make, **options(1))


def test_weak_types_stay_weak():
    """float64 scalars made of Python numbers leave float32 states alone."""
    x, close = X.astype(jnp.float32), rounding(jnp.float32, 16)

    def make(wrap=lambda layer: layer):
        return [wrap(lambda x, c=c: jnp.sin(x * c)) for c in map(jnp.asarray, (0.5, 0.25, 0.75))]

    same_as_loop(make, x, close)
    same_as_loop(partial(make, Plain), x, close, method="newton")
    # A state that is weak after the first layer, and parameters of another dtype.
    weights = [jnp.asarray(w, jnp.bfloat16) for w in WEIGHTS]
    same_as_loop(
        lambda: [lambda x: jnp.where(x > 0, 1.0, 0.5), *[closure(w) for w in weights]],
        tolerance=rounding(jnp.bfloat16, 4),
    )
    same_as_loop(
        lambda: [lambda x, w=w: x * w for w in jnp.arange(1.0, 4.0, dtype=jnp.float32)], 0.7, close
    )


def test_tracers_of_an_outer_transformation():
    """Closures, and objects that can only be traced, over what an outer transformation traces."""

    def value(run, scale):
        objects = [Plain(jax.jit(lambda x, w=w: jnp.sin(scale * (x @ w)))) for w in WEIGHTS[:2]]
        return square(
            run([*[lambda x, w=w: jnp.tanh(scale * (x @ w)) for w in WEIGHTS], *objects], X)
        )

    def transformed(run):
        one, scales = partial(value, run), jnp.array([0.7, 1.1])
        return (
            jax.jit(one)(scales[0]),
            jax.vmap(jax.value_and_grad(one))(scales),
            jax.lax.scan(lambda c, s: (c + one(s), one(c)), scales[1], scales),
            jax.lax.cond(scales[0] > 0, one, lambda s: s, scales[0]),
        )

    assert_agree(
        jax.jit(lambda: transformed(deeppcr.forward))(), jax.jit(lambda: transformed(loop))()
    )


def test_pytree_states_and_dict_order_of_states():
    layers = [lambda s, w=w: {"z": jnp.tanh(s["a"] @ w), "a": s["z"] + s["a"]} for w in WEIGHTS]
    same_as_loop(lambda: layers, {"z": X, "a": 2 * X}, method="newton")


def test_a_callable_that_is_iterable_is_a_layer():
    class Both(Plain):
        def __iter__(self):
            raise AssertionError

    layers = [Both(jnp.sin), Both(jnp.cos)]
    assert_agree(deeppcr.forward(layers, X), loop(layers, X))


def test_a_tuple_of_a_function_and_a_pair_is_two_layers():
    expected = jnp.tanh(jnp.sin(X) @ WEIGHTS[0])
    assert_agree(deeppcr.forward((jnp.sin, (act, WEIGHTS[0])), X), expected)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([jnp.sin, [jnp.sin, jnp.cos]], r"layers\[1\]"),
        ([[jnp.sin]], r"layers\[0\]"),
        ([jnp.sin, None], r"layers\[1\]"),
        ([jnp.sin, normal(0, 3)], r"layers\[1\]"),
        ([(WEIGHTS[0], act)], r"layers\[0\]"),
        ({"a": jnp.sin}, "dict"),
        (jnp.sin, "expected a list"),
        (None, "NoneType"),
        ("tanh", "str"),
        (WEIGHTS[0], "expected a list"),
        (3, "int"),
    ],
    ids=[
        "nested",
        "only nested",
        "None",
        "array inside",
        "pair reversed",
        "dict",
        "function",
        "nothing",
        "text",
        "array",
        "int",
    ],
)
def test_what_is_no_list_of_layers(layers, words):
    with pytest.raises(TypeError, match=words):
        deeppcr.forward(layers, X)


def test_errors_of_a_layer_are_its_own():
    def broken(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        deeppcr.forward([jnp.sin, broken], X)


def test_layers_of_one_object_shared_between_closures():
    assert is_one_chain([closure(WEIGHTS[0])] * N)
    program = str(jax.make_jaxpr(lambda x, w: deeppcr.forward([closure(w)] * 8, x))(X, WEIGHTS[0]))
    assert "8,3,3" not in program
