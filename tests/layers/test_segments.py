"""Where layers make chains: widths, periods, reasons; and how often a layer's code runs."""

import sys

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.checks import COLUMNS, folded
from tests.layers.kinds import Dense, X, chains, dense, same_as_loop
from tests.problems import normal


def a(seed):
    return dense(seed, static="tanh")


def b(seed):
    return dense(seed, static="softplus")


def letters(text):
    """A for one kind of module, B for another, f and g for functions."""
    known = {"A": a, "B": b, "f": lambda _: jnp.sin, "g": lambda _: lambda x: 0.5 * x}
    return [known[letter](seed) for seed, letter in enumerate(text)]


FOUND = {
    "AAAA": [(0, 4, 1)],
    "ABABABA": [(0, 3, 2), (6, 1, 1)],
    "AfAfAf": [(0, 3, 2)],
    "AfgAfgAfgAf": [(0, 3, 3), (9, 1, 1), (10, 1, 1)],
    "AABAABAABAA": [(0, 3, 3), (9, 2, 1)],
    "AAABBB": [(0, 3, 1), (3, 3, 1)],
    "gABABABf": [(0, 1, 1), (1, 3, 2), (7, 1, 1)],
    "AAABAAAB": [(0, 2, 4)],
}


@pytest.mark.parametrize("text", FOUND)
def test_runs_and_periods(text):
    assert [segment[:3] for segment in chains(letters(text))] == FOUND[text]


def test_widths_that_come_back():
    """Down and up again, three times: a step of two layers; and widths that never come back."""
    layers = [layer for i in range(3) for layer in (dense(i, 3, 2), dense(i, 2, 3))]
    assert chains(layers) == [(0, 3, 2, "")]
    same_as_loop(layers, method="newton")
    pyramid = [dense(i, 6 - i, 5 - i) for i in range(5)]
    assert {(length, reason) for _, length, _, reason in chains(pyramid, normal(1, 6))} == {
        (1, "it changes shape or dtype")
    }
    same_as_loop(pyramid, normal(1, 6))


def test_states_without_derivatives_run_in_order():
    def bump(n):
        return lambda x: (x + n) % 7

    table = normal(0, 7, 3)
    layers = [*[bump(n) for n in jnp.arange(4)], lambda i: table[i], *letters("AAA")]
    tokens = jnp.array([1, 5, 6])
    found = chains(layers, tokens)
    assert {reason for _, _, _, reason in found[:4]} == {"it returns non-floating arrays"}
    assert found[5:] == [(5, 3, 1, "")]
    same_as_loop(layers, tokens, method="newton")
    both = [
        lambda s, n=n: (s[0] + n, jnp.sin(s[1] * s[0].astype(s[1].dtype))) for n in jnp.arange(3)
    ]
    same_as_loop(both, (jnp.array([1, 2, 3]), X), method="newton")


def shows(x):
    jax.debug.print("{}", x[0])
    return x


TABLES = {
    "a chain between": (
        lambda: [dense(0, 5, 3), *[dense(i) for i in range(1, 7)], dense(7, 3, 2)],
        (5,),
        """
layers  steps  layers per step  state
0       1      1                float64[5] -> float64[3]  sequential: it changes shape or dtype
1..6    6      1                float64[3]                a chain
7       1      1                float64[3] -> float64[2]  sequential: it changes shape or dtype
""",
    ),
    "a side effect": (
        lambda: [jnp.sin, jnp.sin, shows, lambda x: x > 0],
        (3,),
        """
layers  steps  layers per step  state
0..1    2      1                float64[3]             a chain
2       1      1                float64[3]             sequential: it has side effects: debug_print
3       1      1                float64[3] -> bool[3]  sequential: it returns non-floating arrays
""",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_describe(name):
    layers, shape, table = TABLES[name]
    x = jax.ShapeDtypeStruct(shape, X.dtype)
    for given in ((layers(), x), (tuple(layers()), jnp.zeros(shape))):
        printed = str(deeppcr.layers.describe(*given))
        assert printed == folded(table.strip(), 2)
        assert max(map(len, printed.splitlines())) <= COLUMNS


SORTS = {
    "modules": dense,
    "closures": lambda seed: lambda x, layer=dense(seed): layer(x),  # noqa: B008
    "a period": lambda seed: jnp.sin if seed % 2 else dense(seed),
}


def calls_of(function, run):
    """How often ``run()`` calls a function written in Python."""
    calls = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is function.__code__:
            calls.append(1)

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(calls)


@pytest.mark.parametrize("sort", SORTS)
def test_the_code_of_a_layer_runs_once(sort):
    """Where it is traced: by default so short a list is its loop."""
    layers = [SORTS[sort](seed) for seed in range(32)]
    run = jax.grad(lambda x: deeppcr.forward(layers, x, adjoint="backprop").sum())
    calls = calls_of(Dense.__call__, lambda: jax.make_jaxpr(run)(X))
    assert calls == (16 if sort == "a period" else 32)
