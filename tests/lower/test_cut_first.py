"""Slices of what is computed elementwise are computed from slices."""

import jax
import jax.numpy as jnp
import pytest

from deeppcr.programs.cut_first import apply
from deeppcr.programs.retrace import with_literals
from depth.jaxprs import Program, constants_of, equations, is_literal
from tests.problems import assert_agree, normal

X, Y = normal(0, 2, 6), normal(1, 2, 6)


def cuts(z):
    return jnp.split(z, 3, axis=1)


def a_sum_of_sums(x, y):
    return cuts((x + y) + jnp.sin(x))


def often_used(x, y):
    for _ in range(40):
        x = x * y + x  # each twice: a program of 2^40 operations if every slice was of its own
    return [*cuts(jnp.tanh(x)), x[:, 1:3]]


def whole_as_well(x, y):
    z = x * y
    return [*cuts(jnp.exp(z)), z]


def windows(x, y):
    z = jnp.exp(x)
    return [z[:, i : i + 3] for i in range(4)], z[:1]


def scaled(x, y):
    return cuts(jnp.where(x > 0, 2.0 * x, jnp.clip(y, -1.0, 1.0)))


@pytest.mark.parametrize("f", [a_sum_of_sums, often_used, whole_as_well, windows, scaled])
def test_results_are_the_same(f):
    closed = jax.make_jaxpr(f)(X, Y)
    found = jax.jit(lambda *operands: apply(closed, operands))(X, Y)
    assert_agree(found, jax.tree.leaves(f(X, Y)))


def test_an_array_in_the_program_is_cut_as_others():
    closed = jax.make_jaxpr(lambda x: [*cuts(x + Y), Y[:, 1:]])(X)
    program = with_literals(Program.of(closed), constants_of(closed))
    assert all(map(is_literal, program.eqns[0].invars[1:]))
    found = jax.jit(lambda x: apply(program, [x]))(X)
    assert_agree(found, [*cuts(X + Y), Y[:, 1:]])


@pytest.mark.parametrize(
    ("f", "wide"), [(a_sum_of_sums, 0), (often_used, 0), (whole_as_well, 1), (windows, 1)]
)
def test_only_slices_are_computed(f, wide):
    closed = jax.make_jaxpr(f)(X, Y)
    found = jax.make_jaxpr(lambda *operands: apply(closed, operands))(X, Y)
    computed = [e for e in equations(found.jaxpr) if e.primitive.name not in ("slice", "split")]
    assert sum(e.outvars[0].aval.shape == X.shape for e in computed) == wide
    assert len(computed) < 400
