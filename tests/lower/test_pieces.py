"""Arrays stacked, and cut out again by equal computations: `jnp.stack` is the oracle."""

import jax
import jax.numpy as jnp
import pytest

from deeppcr.lower.cpu.pieces import stack_rows
from tests.problems import assert_agree, normal

ROWS = list(normal(0, 4, 2, 3))


def of(joined):
    """A function that every transformation of `f` depends on."""
    return jnp.sum(jnp.sin(jnp.cumsum(joined, axis=0)) ** 2)


def by(stack, rows):
    def f(first, last):
        return of(stack([first, *rows[1:-1], last]))

    gradient = jax.value_and_grad(jax.checkpoint(f), (0, 1))

    def transformed(first, last):
        pushed = jax.jvp(gradient, (first, last), (first, last))
        batch = jnp.stack([first, 2 * first], axis=-1)
        return pushed, jax.vmap(jax.grad(f), (-1, None))(batch, last)

    return jax.jit(transformed)(rows[0], rows[-1]), transformed(rows[0], rows[-1])


@pytest.mark.parametrize("rows", [ROWS, [row[0, 0] for row in ROWS]], ids=["matrices", "numbers"])
def test_derivatives_are_those_of_numpy(rows):
    assert_agree(by(stack_rows, rows), by(jnp.stack, rows))


def test_what_does_not_move():
    """Integers, and arrays that are not differentiated."""

    def f(moving, stack):
        whole, rest, integers = map(stack, [moving, ROWS, [jnp.arange(2), jnp.arange(3, 5)]])
        return of(whole * jnp.sum(integers).astype(whole.dtype) * jnp.sum(rest)), rest

    ours, theirs = (
        jax.jit(jax.value_and_grad(lambda rows, stack=stack: f(rows, stack), has_aux=True))(ROWS)
        for stack in (stack_rows, jnp.stack)
    )
    assert_agree(ours, theirs)


def test_pieces_are_equal_computations():
    """No slice at an offset of its own is left, by which XLA would tell pieces apart."""
    gradient = jax.jit(jax.grad(lambda rows: of(stack_rows(rows))))
    text = gradient.lower(ROWS).compile().as_text()
    assert text.count(" dynamic-slice(") >= len(ROWS)
    assert " slice(" not in text
