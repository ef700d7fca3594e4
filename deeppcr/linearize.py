"""Linearisation: the blocks ``A_l = df/dz(z_{l-1})`` of all steps at once, by one `jax.vmap`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.chain import Steps
from deeppcr.linear import Blocks, Matrices
from deeppcr.state import Leaves


def linearize(steps: Steps, vectors: Array) -> tuple[Array, Blocks]:
    """``f(z_{l-1}, x_l)`` and the blocks ``df/dz`` there, for every step and every example.

    If the examples of a batch interact, a block sums up what all of them do to one: see `is_block_diagonal`.

    Args:
        steps: of L steps.
        vectors: ``z_0 .. z_{L-1}``, laid out as ``[L, *batch, w]``.
    """
    ones = jnp.eye(steps.layout.width, dtype=vectors.dtype)
    shape = (len(ones), *vectors.shape[1:])
    basis = jnp.broadcast_to(ones.reshape((len(ones), *(1,) * (vectors.ndim - 2), -1)), shape)
    derivatives = _along_directions if not steps.step.has_custom_vjp else _by_rows
    value, matrix = derivatives(steps, vectors, basis)
    return value, Matrices(matrix)


def is_block_diagonal(steps: Steps, vectors: Array, blocks: Blocks) -> Array:
    """Whether the blocks are the whole derivative: bool scalar.

    Each example is moved in a direction of its own. Where examples interact, by batch normalisation for one, what comes out is
    not what the blocks say, for all but a null set of directions.
    """
    shape = vectors.shape[1:]
    direction = np.random.default_rng(0).uniform(0.5, 1.5, shape)  # all of one sign: their mean is not small
    move = jnp.asarray(direction, vectors.dtype)
    _, moved = _along_directions(steps, vectors, move[None])
    expected = blocks.apply(jnp.broadcast_to(move, vectors.shape))
    # Blocks and derivative run the user's own products, which on accelerators may round to TF32 or bfloat16.
    eps = float(jnp.finfo(vectors.dtype).eps)
    tolerance = 1e3 * eps if jax.default_backend() == "cpu" else max(1e3 * eps, 1e-2)
    difference: Array = jnp.abs(moved[..., 0] - expected).max()
    return difference <= tolerance * jnp.abs(expected).max()


def _along_directions(steps: Steps, vectors: Array, directions: Array) -> tuple[Array, Array]:
    """The steps, and their derivatives in ``directions: [k, *batch, w]``, as ``[L, *batch, w, k]``.

    The directions are the same at every step, and `jax.vmap` knows it: a product of a direction with weights that all steps share
    is done once, not L times.
    """

    def one(vector: Array, inputs: Leaves) -> tuple[Array, Array]:
        value, push = jax.linearize(_on_vectors(steps, inputs), vector)
        return value, jax.vmap(push, out_axes=-1)(directions)

    return jax.vmap(one)(vectors, steps.inputs)


def _by_rows(steps: Steps, vectors: Array, basis: Array) -> tuple[Array, Array]:
    """The same for all directions of the state by reverse mode, all that a step with a `jax.custom_vjp` has."""

    def one(vector: Array, inputs: Leaves) -> tuple[Array, Array]:
        value, pull = jax.vjp(_on_vectors(steps, inputs), vector)
        return value, jax.vmap(lambda row: pull(row)[0], out_axes=-2)(basis)

    return jax.vmap(one)(vectors, steps.inputs)


def _on_vectors(steps: Steps, inputs: Leaves) -> Callable[[Array], Array]:
    layout = steps.layout
    return lambda vector: layout.flatten(steps.step(layout.unflatten(vector), inputs, steps.captured))
