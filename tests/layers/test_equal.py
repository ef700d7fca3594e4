"""Which layers are equal: a table of kinds against the loop, and a table of what looks alike."""

import collections
import dataclasses
import enum
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.layers.kinds import (
    WEIGHTS,
    Dense,
    N,
    Plain,
    X,
    chains,
    closure,
    dense,
    gradients,
    loop,
    options,
    same_as_loop,
    square,
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


def over_a_function(weight):
    def inner(x):
        return x @ weight

    return lambda x: jnp.sin(inner(x)) + inner(jnp.cos(x))


def with_attribute(weight):
    def inner(x):
        return jnp.sin(x)

    inner.weight = weight
    return lambda x: inner(x) @ inner.weight


def recursive(weight):
    def layer(x, left=2):
        return x if left == 0 else jnp.tanh(layer(x, left - 1) @ weight)

    return layer


def with_an_empty_cell(weight):
    def layer(x):
        return x @ weight if weight is not None else never

    if weight is None:
        never = 0
    return layer


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
    name, count, function, weight, _ = params["leaves"]
    return function(getattr(jnp, name)(x @ weight)) * float(count)


def each(layer):
    return lambda weights: [layer(weight) for weight in weights]


CHAINS = {
    "modules": each(lambda w: Dense(w, w[0])),
    "lambdas with defaults": lambda weights: [lambda x, w=w: jnp.tanh(x @ w) for w in weights],
    "keyword only defaults": each(keyword_only),
    "partials by keyword": each(lambda w: partial(act_last, weight=w, scale=0.5)),
    "partials of jax": each(lambda w: jax.tree_util.Partial(act, w)),
    "bound methods of pytrees": each(lambda w: Dense(w, w[0]).affine),
    "functions over functions": each(over_a_function),
    "odd containers": each(odd_containers),
    "pairs of dicts in their order": each(lambda w: (in_order, {"b": w, "a": w.T})),
    "apply and a list": lambda weights: (act, list(weights)),
    "leaves of all sorts": each(
        lambda w: (mixed_leaves, {"leaves": ["tanh", 2, jnp.sin, w, None]})
    ),
    "a weight in all, another in each": lambda ws: [
        lambda x, w=w, shared=shared: jnp.tanh(x @ w) @ shared
        for shared in [0.9 * ws[0]]
        for w in ws
    ],
}
IN_TURN = {
    "objects": each(lambda w: Plain(closure(w))),
    "jitted": each(lambda w: jax.jit(closure(w))),
    "functions with attributes": each(with_attribute),
    "recursion": each(recursive),
    "empty cells": each(with_an_empty_cell),
    "a generator": lambda weights: (closure(w) for w in weights),
}
KINDS = CHAINS | IN_TURN
GROUPS = [list(KINDS)[start::3] for start in range(3)]  # one of many chains compiles faster


@pytest.mark.parametrize("names", GROUPS, ids=range(3))
def test_agrees_with_the_loop(names):
    def both(name, weights, x):
        chosen = options(list(KINDS).index(name))
        runs = partial(deeppcr.forward, **chosen), loop
        return [gradients(run, KINDS[name], weights, x) for run in runs]

    found = jax.jit(lambda weights, x: {name: both(name, weights, x) for name in names})(WEIGHTS, X)
    actual, expected = ({name: each[i] for name, each in found.items()} for i in (0, 1))
    assert_agree(actual, expected, 1e-10)


@pytest.mark.parametrize("name", CHAINS)
def test_equal_layers_are_one_chain_and_can_be_stacked(name):
    layers = CHAINS[name](WEIGHTS)
    assert chains(layers) == [(0, N, 1, "")]
    stack, expected = deeppcr.stack(layers, X), loop(layers, X)
    assert len(stack) == N
    assert_agree([stack(X), loop(deeppcr.unstack(stack), X)], [expected, expected])


def test_tracers_of_an_outer_transformation():
    def value(run, scale):
        return square(run([lambda x, w=w: jnp.tanh(scale * (x @ w)) for w in WEIGHTS], X))

    def transformed(run):
        one, scales = partial(value, run), jnp.array([0.7, 1.1])
        return (
            jax.vmap(jax.value_and_grad(one))(scales),
            jax.lax.scan(lambda c, s: (c + one(s), one(c)), scales[1], scales),
        )

    assert_agree(
        jax.jit(lambda: transformed(deeppcr.forward))(), jax.jit(lambda: transformed(loop))()
    )


def test_weak_types_stay_weak():
    """float64 scalars made of Python numbers leave float32 states alone."""
    x, scales = X.astype(jnp.float32), list(map(jnp.asarray, (0.5, 0.25, 0.75)))
    run = partial(deeppcr.forward, method="sequential")  # which calls no short chain one by one
    both = jax.jit(
        lambda scales: [each([lambda x, c=c: x * c for c in scales], x) for each in (run, loop)]
    )
    assert_agree(*both(scales), rounding(jnp.float32, 16))


def test_layers_may_ask_for_arrays_of_numpy():
    arrays = list(map(np.asarray, WEIGHTS))
    orders = [np.random.default_rng(i).permutation(3) for i in range(3)]
    for layer, values in (
        (lambda w, x: jnp.sin(x * (2.0 if isinstance(w, np.ndarray) else 3.0)), arrays),
        (lambda order, x: x[np.argsort(order)], orders),
    ):
        same_as_loop([partial(layer, value) for value in values], method="sequential")


def of(layer, values):
    return lambda: [layer(value) for value in values]


def copysign(c):
    return lambda x: jnp.copysign(x, c)


def is_true(c):
    return lambda x: (2.0 if c is True else 3.0 if isinstance(c, int) else 5.0) * x


def with_globals(weight):
    """The same code, with globals of its own."""
    return types.FunctionType(
        (lambda x: jnp.tanh(x @ weight_of_all)).__code__,  # noqa: F821
        {"jnp": jnp, "weight_of_all": weight},
    )


def of_a_class(scale):
    class Local:
        def __init__(self, weight):
            self.weight = weight

        def __call__(self, x):
            return jnp.sin(x @ self.weight) * scale

    jax.tree_util.register_pytree_node(
        Local, lambda m: ((m.weight,), None), lambda _, leaves: Local(*leaves)
    )
    return Local(WEIGHTS[0])


@jax.tree_util.register_pytree_node_class
class Hides:
    """A pytree whose attribute is not part of it."""

    def __init__(self, weight, scale=1.0):
        self.weight, self.scale = weight, scale

    def tree_flatten(self):
        return (self.weight,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)

    def __call__(self, x):
        return jnp.sin(x @ self.weight) * self.scale


@partial(jax.tree_util.register_dataclass, data_fields=["weight"], meta_fields=["field", "rule"])
@dataclasses.dataclass(frozen=True)
class Static:
    weight: jax.Array
    field: object
    rule: object

    def __call__(self, x):
        return self.rule(self.field)(x @ self.weight)


def static(rule):
    return lambda field: Static(WEIGHTS[0], field, rule)


class Liar:
    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


@dataclasses.dataclass(frozen=True)
class Uncompared:
    scale: float = dataclasses.field(compare=False)


def by_scale(field):
    return lambda x: x * field.scale


def by_size(field):
    return lambda x: x * np.size(field) * (1 + np.ndim(field)) * float(np.sum(field))


A, B = WEIGHTS[:2]
SIGNS, ONES = [0.0, -0.0], [1, True, 1.0]
UNLIKE = {
    "bodies": lambda: [lambda x: jnp.sin(x), lambda x: jnp.cos(x), lambda x: jnp.sin(x)],
    "constants in code": lambda: [lambda x: jnp.copysign(x, 0.0), lambda x: jnp.copysign(x, -0.0)],
    "signs of zero": of(copysign, SIGNS),
    "one, true and one": of(is_true, ONES),
    "orders of dicts": of(lambda p: partial(in_order, p), [{"b": A, "a": B}, {"a": B, "b": A}]),
    "globals": of(with_globals, WEIGHTS),
    "functions closed over": of(lambda f: lambda x: 0.5 + f(x), [jnp.sin, jnp.cos]),
    "classes of one name": of(of_a_class, [0.5, 2.0]),
    "hidden attributes": of(lambda scale: Hides(WEIGHTS[0], scale), [0.5, 2.0]),
    "static arrays": of(static(by_size), [np.array([2.0, 1.0]), np.array([3.0, 2.0])]),
    "static values that are always equal": of(static(by_scale), [Liar(0.5), Liar(2.0)]),
    "static fields not compared": of(static(by_scale), [Uncompared(0.5), Uncompared(2.0)]),
    "dtypes of arrays": of(
        lambda w: lambda x: x * w.astype(x.dtype),
        [jnp.full(3, 0.1, t) for t in ("float64", "float32")],
    ),
    "jitted": of(lambda w: jax.jit(closure(w)), WEIGHTS),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_looks_alike_is_not_equal(name):
    same_as_loop(UNLIKE[name](), **options(list(UNLIKE).index(name)))
    with pytest.raises((TypeError, ValueError), match=r"layers\[\d\]"):
        deeppcr.stack(UNLIKE[name]())


def vjp_rule(scale):
    layer = jax.custom_vjp(lambda x: jnp.sin(x))
    layer.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * scale,))
    return layer


def jvp_rule(scale):
    layer = jax.custom_jvp(lambda x: jnp.sin(x))
    layer.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0] * scale))
    return layer


def transposed(scale):
    return lambda x: jax.custom_derivatives.linear_call(
        lambda _, x: x * 2.0, lambda _, g: g * scale, (), x
    )


@pytest.mark.parametrize("rule", [vjp_rule, jvp_rule, transposed])
def test_derivative_rules_are_part_of_a_layer(rule):
    layers = [rule(1.0), rule(2.0)]
    both = [
        jax.grad(lambda x, run=run: square(run(layers, x)))(X) for run in (deeppcr.forward, loop)
    ]
    assert_agree(*both, 1e-12)


def test_layers_with_one_rule_are_equal():
    assert chains([lambda x, w=w: jax.nn.relu(x @ w) for w in WEIGHTS]) == [(0, N, 1, "")]
    assert chains([vjp_rule(2.0)] * 4) == [(0, 4, 1, "")]


def test_static_values_that_are_the_same_are_equal():
    for field in ("a", 0.5, (1, "a"), Pair(0.5, 1), Mode.UP, jnp.float32, jnp.tanh, None):
        layers = [Static(w, field, lambda field: lambda x: x) for w in WEIGHTS]
        assert chains(layers) == [(0, N, 1, "")], field


def test_the_cache_of_jit_does_not_mix_stacks_up():
    """Equal arrays and structure, other code."""
    call = jax.jit(lambda stack, x: stack(x))
    for layer in (
        dense(0, static="tanh"),
        dense(0, static="relu"),
        closure(A),
        lambda x: -(x @ A),
        static(copysign)(0.0),
        static(copysign)(-0.0),
    ):
        assert_agree(call(deeppcr.stack([layer] * 2), X), loop([layer] * 2, X))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([jnp.sin, [jnp.sin, jnp.cos]], r"layers\[1\].*flat list"),
        ([jnp.sin, normal(0, 3)], r"layers\[1\].*\(apply, \[params"),
        ([(A, act)], r"layers\[0\]"),
        ({"a": jnp.sin}, "dict"),
        (jnp.sin, "expected a list"),
        (A, "expected a list"),
        (3, "layers is 3"),
    ],
    ids=["nested", "array inside", "reversed", "dict", "function", "array", "int"],
)
def test_what_is_no_list_of_layers(layers, words):
    for run in (partial(deeppcr.forward, x=X), deeppcr.stack):
        with pytest.raises(TypeError, match=words):
            run(layers)


def test_a_tuple_of_a_function_and_a_pair_is_two_layers():
    assert_agree(deeppcr.forward((jnp.sin, (act, A)), X), jnp.tanh(jnp.sin(X) @ A))
