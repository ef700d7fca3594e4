"""Images of unit vectors are those by an identity matrix; products with weights are read off."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.linearize.jacobian import columns
from tests.problems import assert_agree, normal, rounding

WIDTH, OUT, BATCH = 4, 3, 2
M, N, SQUARE = normal(1, WIDTH, OUT), normal(2, OUT, WIDTH), normal(3, WIDTH, WIDTH)
PART = normal(4, 2, OUT)
SCALE = normal(5, WIDTH)

PLAIN = {
    "left": lambda v: v @ M,
    "right": lambda v: N @ v,
    "scaled before": lambda v: (SCALE * v) @ M,
    "cut": lambda v: jnp.concatenate([v[:2] @ PART, v[1:3] @ PART, v[2:] @ PART]),
    "turned and thinned": lambda v: jnp.concatenate([v[::-1] @ M, v[::2] @ PART, v[1:1] @ M[:0]]),
    "a row": lambda v: (v[None] @ M)[0],
    "by columns": lambda v: jnp.ravel(v.reshape(2, 2), order="F") @ M,
    "examples of weights": lambda v: jnp.einsum(
        "bi,bij->bj", jnp.broadcast_to(v, (BATCH, WIDTH)), normal(6, BATCH, WIDTH, OUT)
    ),
    "weights first": lambda v: jnp.einsum(
        "bij,bi->bj", normal(6, BATCH, WIDTH, OUT), jnp.broadcast_to(v, (BATCH, WIDTH))
    ),
    "in a function": lambda v: jax.jit(lambda v: v @ M)(v),
    "nothing": lambda v: jnp.zeros(OUT) + 0 * v[0],
}


EXAMPLES = {
    "right": lambda v: jnp.einsum("oi,bi->ob", N, v),
    "weights of each example": lambda v: jnp.einsum("bi,bij->bj", v, normal(6, BATCH, WIDTH, OUT)),
    "contracted over examples": lambda v: jnp.einsum("bi,bj->ij", v, normal(7, BATCH, OUT)),
}


def test_columns_are_those_of_the_matrix():
    """Examples have the same unit vectors."""

    def every(of):
        plain = {name: of(linear, (WIDTH,)) for name, linear in PLAIN.items()}
        return plain, {name: of(linear, (BATCH, WIDTH)) for name, linear in EXAMPLES.items()}

    def by_units(linear, shape):
        return jax.vmap(lambda v: linear(jnp.broadcast_to(v, shape)))(jnp.eye(WIDTH))

    def found(linear, shape):
        return columns(linear, jnp.zeros(shape))

    assert_agree(
        *(jax.jit(partial(every, of))() for of in (found, by_units)),
        rounding(jnp.float64, 2 * BATCH * WIDTH),
    )


@pytest.mark.parametrize(
    "name",
    ["left", "right", "cut", "a row", "examples of weights", "weights first", "in a function"],
)
def test_products_with_weights_are_read_off(name):
    program = jax.make_jaxpr(lambda v: columns(PLAIN[name], v))(jnp.zeros(WIDTH))
    assert "dot_general" not in str(program)
    assert "dot_general" in str(jax.make_jaxpr(jax.vmap(PLAIN[name]))(jnp.eye(WIDTH)))


def test_weights_that_are_not_finite_stay_in_their_entries():
    found = columns(lambda v: v @ SQUARE.at[1, 2].set(jnp.inf), jnp.zeros(WIDTH))
    assert np.isinf(found[1, 2])
    assert np.isfinite(found).sum() == WIDTH**2 - 1
