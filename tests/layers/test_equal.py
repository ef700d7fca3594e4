"""Which layers are equal: a table of kinds against the loop, and a table of what looks alike."""

import collections
import dataclasses
import enum
import functools
import types
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
    same_gradient,
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
    "checkpointed": each(lambda w: jax.checkpoint(closure(w))),
    "functions with attributes": each(with_attribute),
    "recursion": each(recursive),
    "empty cells": each(with_an_empty_cell),
    "a generator": lambda weights: (closure(w) for w in weights),
}
KINDS = CHAINS | IN_TURN
GROUPS = [list(KINDS)[start::3] for start in range(3)]  # one of many chains compiles faster


@pytest.mark.parametrize("names", GROUPS, ids=range(3))
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


@pytest.mark.parametrize("name", CHAINS)
def test_equal_layers_are_one_chain(name):
    assert chains(CHAINS[name](WEIGHTS)) == [(0, N, 1, "")]


def test_gradients_in_the_users_own_structure():
    def make(params):
        modules, shared, dicts = params
        table = [
            (lambda p, x: jnp.sin(x @ p["w"]) + jnp.broadcast_to(p["b"], x.shape), p) for p in dicts
        ]
        return [*modules, *[lambda x, m=m: jnp.sin(m(x)) * shared for m in modules], *table]

    dicts = [{"w": w, "b": w[0]} for w in WEIGHTS[:2]]
    params = [dense(i) for i in range(2)], jnp.array(0.9), dicts
    check(make, params, BATCH, method="newton", adjoint="sequential")


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


def test_weak_types_stay_weak_and_arrays_of_numpy_are_called_in_turn():
    """float64 scalars made of Python numbers leave float32 states alone; code may ask for numpy."""
    x, close = X.astype(jnp.float32), rounding(jnp.float32, 16)
    scales = list(map(jnp.asarray, (0.5, 0.25, 0.75)))
    run = partial(deeppcr.forward, method="sequential")  # which calls no short chain one by one
    both = jax.jit(
        lambda scales: [each([lambda x, c=c: x * c for c in scales], x) for each in (run, loop)]
    )
    assert_agree(*both(scales), close)
    arrays = list(map(np.asarray, WEIGHTS))
    orders = [np.random.default_rng(i).permutation(3) for i in range(3)]
    for layer, values in (
        (lambda w, x: jnp.sin(x * (2.0 if isinstance(w, np.ndarray) else 3.0)), arrays),
        (lambda w, x: x * np.sum(w), arrays),
        (lambda order, x: x[np.argsort(order)], orders),
    ):
        layers = [partial(layer, value) for value in values]
        assert_agree(run(layers, X), loop(layers, X))


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


def over(function):
    return lambda x: 0.5 + function(x)


def wrapped(c):
    @functools.wraps(jnp.sin)
    def layer(x):
        return x * c

    return layer


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


def by_order(params):
    def layer(x):
        for weight in params.values():
            x = jnp.tanh(x @ weight)
        return x

    return layer


def by_callback(c):
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return lambda x: jax.pure_callback(lambda x: np.asarray(x) * c, shape, x)


A, B = WEIGHTS[:2]
SIGNS, ONES = [0.0, -0.0], [1, True, 1.0]
UNLIKE = {
    "bodies": lambda: [lambda x: jnp.sin(x), lambda x: jnp.cos(x), lambda x: jnp.sin(x)],
    "constants in code": lambda: [
        lambda x: x + 1.0,
        lambda x: x + 2.0,
        lambda x: jnp.copysign(x, 0.0),
        lambda x: jnp.copysign(x, -0.0),
    ],
    "signs of zero": of(copysign, SIGNS),
    "one, true and one": of(is_true, ONES),
    "keys of dicts": of(lambda c: lambda x, t={c: 1.5}: is_true(next(iter(t)))(x) * 1.5, ONES),
    "orders of dicts": of(by_order, [{"b": A, "a": B}, {"a": B, "b": A}]),
    "globals": of(with_globals, WEIGHTS),
    "functions closed over": of(over, [jnp.sin, jnp.cos, lambda x: x, lambda x: -x]),
    "wrapped with other functions": of(wrapped, [0.5, 2.0]),
    "classes of one name": of(of_a_class, [0.5, 2.0]),
    "hidden attributes": of(lambda scale: Hides(WEIGHTS[0], scale), [0.5, 2.0]),
    "static tuples": of(static(lambda c: is_true(c[0])), [(1,), (True,)]),
    "static arrays": of(static(by_size), [np.array([2.0, 1.0]), np.array([3.0, 2.0])]),
    "static values that are always equal": of(static(by_scale), [Liar(0.5), Liar(2.0)]),
    "static fields not compared": of(static(by_scale), [Uncompared(0.5), Uncompared(2.0)]),
    "callbacks": of(by_callback, [2.0, 3.0]),
    "dtypes of arrays": of(
        lambda w: lambda x: x * w.astype(x.dtype),
        [jnp.full(3, 0.1, t) for t in ("float64", "float32")],
    ),
    "one of six": lambda: [*[copysign(0.5)] * 3, copysign(-0.7), *[copysign(0.5)] * 2],
    "jitted": of(lambda w: jax.jit(closure(w)), WEIGHTS),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_looks_alike_is_not_equal(name):
    same_as_loop(UNLIKE[name], **options(list(UNLIKE).index(name)))
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


RULES = {
    "vjp": of(vjp_rule, [1.0, 2.0]),
    "jvp": of(lambda s: over(jvp_rule(s)), [1.0, 2.0]),
    "linear_call": of(transposed, [1.0, 2.0]),
    "a rule, and none": lambda: [jnp.sin, vjp_rule(2.0), vjp_rule(3.0)],
}


@pytest.mark.parametrize("name", RULES)
def test_derivative_rules_are_part_of_a_layer(name):
    same_gradient(RULES[name])


def test_layers_with_one_rule_are_equal():
    assert chains([lambda x, w=w: jax.nn.relu(x @ w) for w in WEIGHTS]) == [(0, N, 1, "")]
    assert chains([vjp_rule(2.0)] * 4) == [(0, 4, 1, "")]


def test_static_values_that_are_the_same_are_equal():
    for field in ("a", 0.5, (1, "a"), Pair(0.5, 1), Mode.UP, jnp.float32, jnp.tanh, None):
        layers = [Static(w, field, as_it_is) for w in WEIGHTS]
        assert is_one_chain(layers), field


def as_it_is(field):
    return lambda x: x


def test_the_cache_of_jit_does_not_mix_stacks_up():
    """Equal arrays and structure, other code."""
    call = jax.jit(lambda stack, x: stack(x))
    for layer in (
        dense(0, static="tanh"),
        dense(0, static="relu"),
        closure(A),
        lambda x: -(x @ A),
        over(jnp.sin),
        over(jnp.cos),
        static(copysign)(0.0),
        static(copysign)(-0.0),
    ):
        assert_agree(call(deeppcr.stack([layer] * 2), X), loop([layer] * 2, X))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([jnp.sin, [jnp.sin, jnp.cos]], r"layers\[1\].*flat list"),
        ([jnp.sin, None], r"layers\[1\]"),
        ([jnp.sin, normal(0, 3)], r"layers\[1\].*\(apply, \[params"),
        ([(A, act)], r"layers\[0\]"),
        ({"a": jnp.sin}, "dict"),
        (jnp.sin, "expected a list"),
        (A, "expected a list"),
        (3, "layers is 3"),
    ],
    ids=["nested", "None", "array inside", "reversed", "dict", "function", "array", "int"],
)
def test_what_is_no_list_of_layers(layers, words):
    with pytest.raises(TypeError, match=words):
        deeppcr.forward(layers, X)


def test_a_tuple_of_a_function_and_a_pair_is_two_layers():
    assert_agree(deeppcr.forward((jnp.sin, (act, A)), X), jnp.tanh(jnp.sin(X) @ A))
