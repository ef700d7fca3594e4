"""Linear programs with their factors multiplied first have the same results."""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.lower.cpu.factors_first import multiplied_first
from deeppcr.lower.steps import Loop
from depth.jaxprs import Program, constants_of, equations
from tests.problems import assert_agree, normal, rounding

one_function = importlib.import_module("deeppcr.lower.cpu.one_function")  # a function, too
N = 4
G, A, B, C = (normal(seed, 2, N) for seed in range(4))
W = normal(5, N, N)


def factors_first(closed, *operands):
    program = Program.of(closed)
    return multiplied_first(program, program.invars[:1], [*constants_of(closed), *operands])


def chained(g, a, b, c):
    return ((g * a) * b) / c


def negated(g, a, b, c):
    return -(g * a) * b + c * g * b


def used_again(g, a, b, c):
    x = g * a
    return x * b, x * c, x, -x, 2.0 * x


def of_two_values(g, a, b, c):
    x = g @ W.astype(g.dtype)
    y = (x + (g * a)) + (x * c)
    return y * b + y * a, g


def in_a_call(g, a, b, c):
    return jax.jit(lambda x: jnp.tile(x * b, 2) * 0.5)(g * a) * jnp.tile(c, 2)


def plus_itself(g, a, b, c):
    return (g + g * a) * (1 - a) + g, g + g


def values_beside_tangents(g, a, b, c):
    values, g = jax.lax.fori_loop(0, 2, lambda _, both: (both[0] * b, both[1] * both[0]), (a, g))
    return g * values


PROGRAMS = [values_beside_tangents, chained, negated, used_again, of_two_values, in_a_call]
PROGRAMS += [plus_itself]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_results_are_the_same(f, dtype):
    weak = jax.tree.map(lambda x: x.astype(dtype), (G, A, B, C))
    wide = [x.astype("float64") for x in weak]
    closed = jax.make_jaxpr(f)(*weak)
    found = jax.jit(partial(factors_first, closed))(*weak)
    assert [x.dtype for x in found] == [x.dtype for x in jax.tree.leaves(f(*weak))]
    found = [x.astype("float64") for x in found]
    assert_agree(found, jax.tree.leaves(f(*wide)), rounding(dtype, 8))  # of the longest program


def multiplied(f, limit):
    """The number of products with what the program is linear in."""
    closed = jax.make_jaxpr(lambda g, *factors: f(g, *map(limit, factors)))(G, A, B, C)
    found = jax.make_jaxpr(partial(factors_first, closed))(G, A, B, C)
    moved, count = set(found.jaxpr.invars[:1]), 0
    for each in equations(found.jaxpr):
        if moved.intersection(x for x in each.invars if not hasattr(x, "val")):
            moved.update(each.outvars)
            count += each.primitive.name in ("mul", "div")
    return count


@pytest.mark.parametrize(("f", "count"), [(chained, 2), (negated, 1), (plus_itself, 1)])
@pytest.mark.parametrize("limit", [jax.nn.sigmoid, jnp.tanh, lambda x: 1 - jnp.cos(x) ** 2])
def test_bounded_factors_are_multiplied_first(f, count, limit):
    assert multiplied(f, limit) == count


@pytest.mark.parametrize("limit", [jnp.exp, lambda x: 1 / jnp.tanh(x)])
def test_others_are_not(limit):
    assert multiplied(negated, limit) == 4


def lstm(carry, x):
    h, c = carry
    i, f, o, g = jnp.split(x + h @ jnp.tile(W, 4), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def test_a_step_of_an_lstm_reads_six_arrays_backwards_and_a_cotangent(monkeypatch):
    monkeypatch.setattr(one_function, "is_hoisted", lambda: False)
    xs, read = normal(6, 3, 2, 4 * N), {}
    scan = Loop.scan

    def recorded(loop, operands, *others):
        read[loop.kind.linear] = [x.shape for x in operands.xs]
        return scan(loop, operands, *others)

    monkeypatch.setattr(Loop, "scan", recorded)

    def loss(scan, init):
        (h, c), ys = scan(lstm, init, xs)
        return (h * c).sum() + jnp.sin(ys).sum()

    scans = partial(deeppcr.scan, adjoint="backprop"), jax.lax.scan
    assert_agree(*jax.jit(lambda z: [jax.grad(partial(loss, s))(z) for s in scans])((A, B)))
    assert read[True] == [(3, 2, N)] * 7


def exponential(z, x):
    return jnp.exp(z + x) ** 2


def of_a_complex_number(z, x):
    return jnp.real(jnp.sin(jax.lax.complex(z, 1.2 * x + 0 * z)) ** 2)


def of_large_numbers(z, x):
    scale = (8 + 8 * jax.lax.sign(jnp.full(z.shape, x) - 1)) ** 100
    for _ in range(3):
        z = scale * jnp.sin(z)
    return z


@pytest.mark.parametrize("f", [exponential, of_a_complex_number, of_large_numbers])
def test_a_branch_that_is_not_taken_may_overflow(f):
    """Its cotangents are 0; the product of its factors is infinite."""

    def step(z, x):
        return jnp.where(x > 1, z, jnp.sin(z)) + jnp.where(x > 1, 0.0, f(z, x)), z

    def loss(scan, z):
        return scan(step, z, jnp.array([0.1, 400.0, 0.2]))[0].sum()

    scans = partial(deeppcr.scan, method="sequential", adjoint="backprop"), jax.lax.scan
    found, expected = jax.jit(lambda z: [jax.grad(partial(loss, s))(z) for s in scans])(A[0] / 9)
    assert jnp.isfinite(expected).all()
    assert_agree(found, expected)
