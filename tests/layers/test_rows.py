"""Stacking with rows that are split by equal computations: `jnp.stack` is the oracle."""

import jax
import jax.numpy as jnp
import pytest

from deeppcr.layers.rows import split_rows, stack_rows
from tests.problems import assert_agree, normal

ROWS = [normal(i, 3) for i in range(4)]


def of(stacked):
    """A function that every transformation of `f` depends on."""
    return jnp.sum(jnp.sin(jnp.cumsum(stacked, axis=0)) ** 2)


def by(stack):
    def f(first, last):
        return of(stack([first, *ROWS[1:-1], last]))

    def through(f, *arguments):
        return jax.jvp(f, arguments, arguments)

    gradient = jax.grad(f, (0, 1))
    batch = jnp.stack(ROWS, axis=1)
    return {
        "value": lambda: f(ROWS[0], ROWS[-1]),
        "gradient": lambda: gradient(ROWS[0], ROWS[-1]),
        "jvp of the gradient": lambda: through(gradient, ROWS[0], ROWS[-1]),
        "hessian": lambda: jax.hessian(f)(ROWS[0], ROWS[-1]),
        "vmap": lambda: jax.vmap(jax.grad(f), (1, None))(batch, ROWS[-1]),
        "checkpoint": lambda: jax.jit(jax.grad(jax.checkpoint(f)))(ROWS[0], ROWS[-1]),
    }


@pytest.mark.parametrize("name", by(jnp.stack))
def test_derivatives_are_those_of_stack(name):
    assert_agree(by(stack_rows)[name](), by(jnp.stack)[name]())


def test_gradients_of_some_rows():
    stacked = jnp.stack(ROWS)
    ours = jax.jit(jax.grad(lambda x: jnp.sum(split_rows(x)[2] ** 3)))(stacked)
    assert_agree(ours, jax.grad(lambda x: jnp.sum(x[2] ** 3))(stacked))


def test_rows_are_equal_computations():
    """No slice at an offset of its own is left, by which XLA would tell rows apart."""
    text = jax.jit(jax.grad(lambda rows: of(stack_rows(rows)))).lower(ROWS).compile().as_text()
    assert text.count(" dynamic-slice(") >= len(ROWS)
    assert " slice(" not in text
