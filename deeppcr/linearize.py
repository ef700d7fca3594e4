"""Linearisation: the blocks ``A_l = df/dz(z_{l-1})`` of all steps at once.

The steps are evaluated side by side by one `jax.vmap`, and what is differentiated is that one batched function: the blocks cost w
derivatives of the batched program, not L w derivatives of a single step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.chain import Steps
from deeppcr.linear import Blocks, Dense


def linearize(steps: Steps, vectors: Array) -> tuple[Array, Blocks, Callable[[Array], Array]]:
    """``f(z)``, the blocks ``df/dz`` of every step and example, and the whole derivative as a linear function.

    If the examples of a batch interact, a block sums up what all of them do to one: then only the function is exact.

    Args:
        steps: of L steps.
        vectors: ``z_0 .. z_{L-1}``, laid out as ``[L, *batch, w]``.
    """
    value, derivative = derivative_of(steps.evaluate, vectors)
    ones = jnp.eye(steps.layout.width, dtype=vectors.dtype)

    def column(e: Array) -> Array:
        return derivative(jnp.broadcast_to(jnp.expand_dims(e, range(vectors.ndim - 1)), vectors.shape))

    return value, Dense(jax.vmap(column, out_axes=-1)(ones)), derivative


def examples_are_separate(blocks: Blocks, derivative: Callable[[Array], Array]) -> Array:
    """Whether the blocks are the whole derivative: bool scalar.

    Each example is moved in a direction of its own. Where examples interact, by batch normalisation for one, what comes out is not
    what the blocks say, for all but a null set of directions.
    """
    shape = blocks.vector_shape
    direction = np.random.default_rng(0).uniform(0.5, 1.5, shape[1:])  # all of one sign: their mean is not small
    move = jnp.broadcast_to(jnp.asarray(direction, blocks.dtype), shape)
    expected = blocks.apply(move)
    # Blocks and derivative run the user's own products, which on accelerators may round to TF32 or bfloat16.
    eps = float(jnp.finfo(blocks.dtype).eps)
    tolerance = 1e3 * eps if jax.default_backend() == "cpu" else max(1e3 * eps, 1e-2)
    difference: Array = jnp.abs(derivative(move) - expected).max()
    return difference <= tolerance * jnp.abs(expected).max()


def derivative_of(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``f(*primals)`` and its derivative there, a linear function of tangents.

    Functions that define only their transposed derivative (`jax.custom_vjp`) are served too: by the transpose of the transpose.
    """
    try:
        linear: tuple[Any, Callable[..., Any]] = jax.linearize(f, *primals)
        return linear
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
    value, pullback = jax.vjp(f, *primals)
    push = jax.linear_transpose(pullback, value)
    return value, lambda *tangents: push(tangents)[0]
