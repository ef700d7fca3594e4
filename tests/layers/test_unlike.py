"""Layers that look alike and are not: they must not be taken for each other."""

import dataclasses
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
    Plain,
    X,
    chains,
    check,
    closure,
    dense,
    loop,
    options,
    same_as_loop,
    same_gradient,
)
from tests.problems import assert_agree, normal

SCALES = list(normal(5, 4, 3))


def of(layer, values):
    return lambda: [layer(value) for value in values]


def copysign(c):
    return lambda x: jnp.copysign(x, c)


def to_the_sign(x, c):
    return jnp.copysign(x, c)


def is_true(c):
    return lambda x: (2.0 if c is True else 3.0 if type(c) is int else 5.0) * x


def with_globals(weight):
    """The same code, with globals of its own."""
    return types.FunctionType(
        (lambda x: jnp.tanh(x @ weight_of_all)).__code__,  # noqa: F821
        {"jnp": jnp, "weight_of_all": weight},
    )


def over(function):
    return lambda x: 0.5 + function(x)


def with_attribute(scale):
    def inner(x):
        return jnp.sin(x)

    inner.scale = scale
    return lambda x: inner(x) * inner.scale


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


def static(rule):
    """A pytree whose static field ``rule(field, x)`` reads."""

    @partial(jax.tree_util.register_dataclass, data_fields=["weight"], meta_fields=["field"])
    @dataclasses.dataclass(frozen=True)
    class Static:
        weight: jax.Array
        field: object

        def __call__(self, x):
            return rule(self.field, x @ self.weight)

    return lambda field: Static(WEIGHTS[0], field)


def by_array(field, x):
    return x * np.size(field) * (1 + np.ndim(field)) * jnp.sum(jnp.asarray(field)).astype(x.dtype)


def by_callback(c):
    return lambda x: jax.pure_callback(
        lambda x: np.asarray(x) * c, jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )


def by_order(params):
    def layer(x):
        for weight in params.values():
            x = jnp.tanh(x @ weight)
        return x

    return layer


def in_jit(layer):
    return lambda c: Plain(jax.jit(layer(c)))


LARGE = [np.random.default_rng(i).permutation(3000).astype(float) for i in range(3)]
NANS = [float("nan"), float("nan"), 1.0]
SIGNS = [0.0, -0.0]  # the last one counts
UNLIKE = {
    "bodies": lambda: [lambda x: jnp.sin(x), lambda x: jnp.cos(x), lambda x: jnp.sin(x)],
    "constants in code": lambda: [
        lambda x: x + 1.0,
        lambda x: x + 2.0,
        lambda x: jnp.copysign(x, 0.0),
        lambda x: jnp.copysign(x, -0.0),
    ],
    "signs of zero": of(copysign, SIGNS),
    "signs of zero of numpy": of(copysign, [np.float64(0.0), np.float64(-0.0)]),
    "signs of zero of objects": of(lambda c: Plain(copysign(c)), SIGNS),
    "signs of zero of jitted objects": of(in_jit(copysign), SIGNS),
    "signs of zero in a partial": of(lambda c: partial(to_the_sign, c=c), SIGNS),
    "signs of zero in a complex": of(
        lambda c: lambda x: x * (2.0 if str(c) == "0j" else 3.0), [0j, complex(-0.0, 0.0)]
    ),
    "not a number": of(lambda c: lambda x: jnp.where(jnp.isnan(c), x + 1, x * 2), NANS),
    "close numbers": of(lambda c: Plain(lambda x: 1e8 * (c * x - x)), [1.0, 1 + 2e-16, 1 + 1e-15]),
    "one, true and one": of(is_true, [1, True, 1.0]),
    "globals": of(with_globals, WEIGHTS),
    "functions closed over": of(over, [jnp.sin, jnp.cos, lambda x: x, lambda x: -x]),
    "attributes of functions": of(with_attribute, [0.5, 2.0]),
    "array attributes of functions": of(with_attribute, SCALES),
    "classes of one name": of(of_a_class, [0.5, 2.0]),
    "static signs of zero": of(static(lambda c, x: jnp.copysign(x, c)), SIGNS),
    "static one, true and one": of(static(lambda c, x: is_true(c)(x)), [1, True, 1.0]),
    "static tuples": of(static(lambda c, x: is_true(c[0])(x)), [(1,), (True,)]),
    "static arrays": of(
        static(by_array), [np.array([1.0, 2.0]), np.array([3.0, 2.0]), np.array([3.0, 2.0])]
    ),
    "static arrays of one entry": of(
        static(by_array), [np.array(2.0), np.array([2.0]), np.array([[2.0]])]
    ),
    "static names": lambda: [
        dense(0, static="tanh"),
        dense(0, static="relu"),
        dense(0, static="tanh"),
    ],
    "keys of dicts": of(
        lambda c: lambda x, table={c: 1.5}: is_true(next(iter(table)))(x) * 1.5, [1, True]
    ),
    "orders of dicts": of(
        by_order, [{"b": WEIGHTS[0], "a": WEIGHTS[1]}, {"a": WEIGHTS[1], "b": WEIGHTS[0]}]
    ),
    "callbacks": of(lambda c: Plain(by_callback(c)), [2.0, 3.0]),
    "large constants": of(lambda w: Plain(lambda x: x * w[:3]), LARGE),
    "large constants in jit": of(in_jit(lambda w: lambda x: x * w[:3]), LARGE),
    "arrays in jit": of(lambda w: jax.jit(closure(w)), WEIGHTS),
    "arrays in jit in objects": of(in_jit(closure), WEIGHTS),
    "arrays in jit in jit": of(lambda w: jax.jit(over(jax.jit(closure(w)))), WEIGHTS),
    "modules and lists": lambda: [
        closure(WEIGHTS[0]),
        partial(jnp.matmul, b=WEIGHTS[0]),
        lambda x: jnp.tanh(x @ WEIGHTS[0]),
    ],
    "dtypes of arrays": of(
        lambda w: lambda x: x * w.astype(x.dtype),
        [jnp.full(3, 0.1, t) for t in ("float64", "float32")],
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_values(name):
    same_as_loop(UNLIKE[name], **options(list(UNLIKE).index(name)))


def vjp_rule(scale):
    @jax.custom_vjp
    def layer(x):
        return jnp.sin(x)

    layer.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * scale,))
    return layer


def jvp_rule(scale):
    @jax.custom_jvp
    def layer(x):
        return jnp.sin(x)

    layer.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0] * scale))
    return layer


def jitted_jvp_rule(scale):
    times = jax.jit(lambda x: x * scale)

    @jax.custom_jvp
    def layer(x):
        return jnp.sin(x)

    layer.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), times(tangents[0])))
    return layer


def gradient_rule(scale):
    return jax.custom_gradient(lambda x: (jnp.sin(x), lambda g: g * scale))


def transposed(scale):
    return lambda x: jax.custom_derivatives.linear_call(
        lambda _, x: x * 2.0, lambda _, g: g * scale, (), x
    )


def other_rule(number):
    """Rules of other code, not of other constants."""
    rules = [lambda x, g: (g,), lambda x, g: (g * jnp.cos(x),), lambda x, g: (-g,)]

    @jax.custom_vjp
    def layer(x):
        return jnp.sin(x)

    layer.defvjp(lambda x: (jnp.sin(x), x), rules[number])
    return layer


NUMBERS = [1.0, 2.0, -1.0]
RULES = {
    "vjp": of(vjp_rule, NUMBERS),
    "vjp with arrays": of(vjp_rule, SCALES),
    "vjp with arrays of numpy": of(vjp_rule, list(map(np.asarray, SCALES))),
    "vjp of other code": of(other_rule, range(3)),
    "jvp": of(jvp_rule, NUMBERS),
    "jvp with arrays": of(jvp_rule, SCALES),
    "jvp with jitted arrays": of(jitted_jvp_rule, SCALES),
    "jitted vjp with arrays": of(lambda s: jax.jit(vjp_rule(s)), SCALES),
    "vjp with arrays in an object": of(lambda s: Plain(jax.jit(vjp_rule(s))), SCALES),
    "jvp with arrays in a closure": of(lambda s: over(jvp_rule(s)), SCALES),
    "custom_gradient": of(gradient_rule, SCALES),
    "linear_call": of(transposed, NUMBERS),
    "linear_call in objects": of(lambda s: Plain(transposed(s)), NUMBERS),
    "a rule, and none": lambda: [
        jnp.sin,
        vjp_rule(2.0),
        Plain(jnp.sin),
        Plain(vjp_rule(2.0)),
        Plain(vjp_rule(3.0)),
    ],
    "stopped": of(
        lambda stop: Plain(lambda x: 2 * (jax.lax.stop_gradient(x) if stop else x) + x),
        [True, False, True],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_derivatives(name):
    # By jax's own derivatives: those of linear_call go backwards only.
    same_gradient(
        RULES[name],
        adjoint="auto" if "linear" in name else ["backprop", "pcr"][list(RULES).index(name) % 2],
    )


def weight_rule(scale):
    """A rule that is its own only in the derivative to the weight."""

    @jax.custom_vjp
    def layer(weight, x):
        return jnp.tanh(x @ weight)

    def back(kept, g):
        weight, x = kept
        return jnp.outer(x, g) * scale, g @ weight.T

    layer.defvjp(lambda weight, x: (layer(weight, x), (weight, x)), back)
    return layer


@pytest.mark.parametrize("scales", [NUMBERS, WEIGHTS[:3]], ids=["numbers", "arrays"])
def test_rules_for_what_is_captured(scales):
    rules = [weight_rule(scale) for scale in scales]
    check(
        lambda weights: [lambda x, f=f, w=w: f(w, x) for f, w in zip(rules, weights, strict=False)],
        adjoint="backprop",
    )


@pytest.mark.parametrize("scales", [NUMBERS, SCALES], ids=["numbers", "arrays"])
def test_second_derivatives(scales):
    def of_second_order(scale):
        cos = jax.custom_jvp(jnp.cos)
        cos.defjvp(lambda primals, tangents: (jnp.cos(primals[0]), tangents[0] * scale))
        sin = jax.custom_jvp(lambda x: jnp.sin(x))
        sin.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), cos(primals[0]) * tangents[0]))
        return sin

    layers = [of_second_order(scale) for scale in scales]
    actual = jax.hessian(lambda x: deeppcr.forward(layers, x).sum())(X)
    assert_agree(actual, jax.hessian(lambda x: loop(layers, x).sum())(X))


def test_rules_do_not_part_layers_that_are_alike():
    """Relu has a rule; layers with it are alike, also where they can only be traced."""
    assert chains([Plain(lambda x, w=w: jax.nn.relu(x @ w)) for w in WEIGHTS]) == [(0, 4, 1, "")]
    layer = vjp_rule(2.0)
    assert chains([layer] * 4) == [(0, 4, 1, "")]


def test_the_cache_of_jit_does_not_mix_stacks_up():
    """Equal arrays and structure, other code."""
    call = jax.jit(lambda stack, x: stack(x))
    make = static(lambda c, x: jnp.copysign(x, c))
    for layers in (
        [dense(0, static="tanh")] * 2,
        [dense(0, static="relu")] * 2,
        [closure(WEIGHTS[0])] * 2,
        [lambda x: x @ WEIGHTS[0]] * 2,
        [lambda x: -(x @ WEIGHTS[0])] * 2,
        [over(jnp.sin)] * 2,
        [over(jnp.cos)] * 2,
        [make(0.0)] * 2,
        [make(-0.0)] * 2,
        [Dense(WEIGHTS[0], WEIGHTS[0][0]).affine] * 2,
    ):
        assert_agree(call(deeppcr.stack(layers), X), loop(layers, X))
