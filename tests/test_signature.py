"""Signatures: equal for the same parameter or program written anew, unequal for any other."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.programs.signature import signature

OTHERS = {
    "float": lambda: 1.0,
    "truth": lambda: True,
    "text": lambda: "1",
    "none": lambda: None,
    "list": lambda: [1, 2],
    "dict": lambda: {"a": 1, "b": 2},
    "float64": lambda: np.ones(2),
    "value": lambda: np.array([1.0, 2.0]),
    "zero": lambda: np.array([0.0, 0.0]),
    "nan": lambda: np.array([np.nan, 0.0]),
}


def program(f, *shapes, dtype="float64"):
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return lambda: jax.make_jaxpr(lambda *xs: f(*xs))(*inputs)  # a new function is traced anew


def reduction(factor):
    """By a function of its own."""
    return program(
        lambda x, y: (jax.lax.reduce(x * y, 0.0, lambda a, b: a + factor * b, (0,)), y), (3,), (3,)
    )


PROGRAMS = {
    "sum": program(lambda x, y: x + y, (3,), (3,)),
    "difference": program(lambda x, y: x - y, (3,), (3,)),
    "literal": program(lambda x, y: x * 2.0 + y, (3,), (3,)),
    "another literal": program(lambda x, y: x * 3.0 + y, (3,), (3,)),
    "constant": program(lambda x, y: x * np.arange(3.0) + y, (3,), (3,)),
    "another constant": program(lambda x, y: x * np.arange(1.0, 4.0) + y, (3,), (3,)),
    "dtype": program(lambda x, y: x + y, (3,), (3,), dtype="float32"),
    "parameter": program(lambda x, y: jnp.sum(jnp.outer(x, y), 0), (3,), (3,)),
    "other parameter": program(lambda x, y: jnp.sum(jnp.outer(x, y), 1), (3,), (3,)),
    "loop": program(
        lambda x, y: jax.lax.scan(lambda c, _: (jnp.sin(c) + y, None), x, length=3)[0], (3,), (3,)
    ),
    "longer loop": program(
        lambda x, y: jax.lax.scan(lambda c, _: (jnp.sin(c) + y, None), x, length=4)[0], (3,), (3,)
    ),
    "reduction": reduction(1.0),
    "other reduction": reduction(2.0),
}


@pytest.mark.parametrize("values", [OTHERS, PROGRAMS], ids=["values", "programs"])
def test_what_is_the_same_is_equal_and_all_else_is_not(values):
    first, second = (
        {name: signature(make())[0] for name, make in values.items()} for _ in range(2)
    )
    assert first == second
    assert {name: hash(value) for name, value in first.items()} == {
        name: hash(value) for name, value in second.items()
    }
    for one, other in itertools.combinations(first, 2):
        assert first[one] != first[other], (one, other)


@jax.custom_jvp
def one(x):
    return jnp.sin(x)


@jax.custom_jvp
def other(x):
    return jnp.sin(x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def scaled(factor, x):
    return jnp.sin(x)


def never(*_):
    raise AssertionError("a signature traces no rule")


def never_either(*_):
    raise AssertionError("a signature traces no rule")


one.defjvp(never)
other.defjvps(never_either)
scaled.defvjp(never, never)
# The values of all of these are the same.
RULES = {
    "one": one,
    "other": other,
    "jitted": jax.jit(one),
    "mapped": jax.vmap(one),
    "argument": partial(scaled, 1.0),
    "other argument": partial(scaled, 2.0),
    "of jax": lambda x: jax.nn.relu(jax.scipy.special.logit(x)),
    "of jax by jax": lambda x: jax.scipy.special.expi(x),
    "of jax at a precision": lambda x: jnp.linalg.pinv(jnp.outer(x, x)),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_are_compared_without_tracing_them(name):
    first, second = (
        {key: signature(program(f, (3,))()) for key, f in RULES.items()} for _ in range(2)
    )
    assert first[name] == second[name]
    assert first[name][1] == ""
    assert not any(first[name] == found for key, found in first.items() if key != name)


def test_a_rule_made_anew_counts_as_another():
    def made(factor):
        found = jax.custom_jvp(jnp.sin)
        found.defjvp(lambda x, t: (found(*x), factor * t[0]))
        return found

    found = [signature(program(made(1.0), (3,))()) for _ in range(2)]
    assert found[0] != found[1]
    assert "closes over values" in found[0][1]


def test_what_cannot_be_compared_is_the_same_as_itself():
    class Unhashable:
        __hash__ = None

    one, other, key = Unhashable(), Unhashable(), jax.random.key(0)
    assert signature(one) == signature(one) != signature(other)
    assert signature(key) == signature(key) != signature(jax.random.key(1))
