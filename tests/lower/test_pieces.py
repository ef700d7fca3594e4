"""Arrays joined, and split by equal computations: `jnp.concatenate` and `lax.split` are oracles."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from deeppcr.lower.cpu.pieces import join, split, stack_rows
from tests.problems import assert_agree, normal

ROWS = [normal(i, 2 if i % 2 else 1, 3) for i in range(4)]
SIZES = [len(row) for row in ROWS]


def of(joined):
    """A function that every transformation of `f` depends on."""
    return jnp.sum(jnp.sin(jnp.cumsum(joined, axis=0)) ** 2)


def by(joined):
    def f(first, last):
        return of(joined([first, *ROWS[1:-1], last]))

    gradient = jax.value_and_grad(jax.checkpoint(f), (0, 1))

    @jax.jit
    def transformed(first, last):
        pushed = jax.jvp(gradient, (first, last), (first, last))
        batch = jnp.stack([first, 2 * first], axis=1)
        return pushed, jax.vmap(jax.grad(f), (1, None))(batch, last)

    return transformed(ROWS[0], ROWS[-1])


def by_rows(stack):
    """The same of all rows, joined on a new axis."""
    return by(lambda pieces: stack([row for piece in pieces for row in piece]))


def test_derivatives_are_those_of_numpy():
    assert_agree(by(join), by(jnp.concatenate))
    assert_agree(by_rows(stack_rows), by_rows(jnp.stack))


def test_what_does_not_move():
    """Integers, arrays that are not differentiated, and results that nobody uses."""

    def f(moving, join, split):
        whole, rest, integers = map(join, [moving, ROWS, [jnp.arange(2), jnp.arange(3)]])
        some, others = split(whole, SIZES), split(rest, SIZES)
        total = jnp.sum(integers).astype(whole.dtype)
        return jnp.sum(some[1] ** 3) + jnp.sum(others[0]) + of(whole * total), rest

    ours, theirs = (
        jax.jit(jax.value_and_grad(partial(f, join=join, split=split), has_aux=True))(ROWS)
        for join, split in ((join, split), (jnp.concatenate, lax.split))
    )
    assert_agree(ours, theirs)


def test_pieces_are_equal_computations():
    """No slice at an offset of its own is left, by which XLA would tell pieces apart."""
    text = jax.jit(jax.grad(lambda rows: of(join(rows)))).lower(ROWS).compile().as_text()
    assert text.count(" dynamic-slice(") >= len(ROWS)
    assert " slice(" not in text
