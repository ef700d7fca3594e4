"""Derivatives of all steps at once: of every one its matrix, the blocks on its diagonal, or the diagonal alone.

A direction is a vector ``[w]``, the same for all steps and examples, and `jax.vmap` knows that: a product of a direction with
weights that all steps share is done once, not L times. A step with a `jax.custom_vjp` has reverse mode only; there the rows of
the Jacobian take the place of its columns.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.chain import TracedChain
from deeppcr.rewrites.columns import columns
from deeppcr.state import Leaves

AT_ONCE = 1 << 26  # bytes of derivatives that are held at once where only a part of them is wanted


def matrices(chain: TracedChain, states: Array) -> Array:
    """``df/dz`` as ``[L, *batch, w, w]``, at ``states: [L, *batch, w]``."""

    def one(state: Array, inputs: Leaves) -> Array:
        return jnp.moveaxis(columns(_pushed(chain, state, inputs), state), 0, -1)

    derivatives = jax.vmap(one)(states, chain.inputs)
    return jnp.swapaxes(derivatives, -1, -2) if chain.step.has_custom_vjp else derivatives


def diagonals(chain: TracedChain, states: Array, directions: np.ndarray) -> Array:
    """``sum_s d_s * (J d_s)`` for directions ``d: [n, w]``, as ``[L, *batch, w]``."""

    entries, only = np.arange(chain.layout.width), directions.argmax(axis=0)
    by_one = (
        directions == np.eye(len(directions))[:, only]
    ).all()  # each entry is moved by one direction, in whole

    def pick(derivatives: Array, part: Array) -> Array:
        if by_one and len(part) == len(directions):
            return derivatives[..., entries, only][..., None]
        signs = part.T.reshape((*(1,) * (derivatives.ndim - 2), *part.T.shape))
        return (derivatives * signs).sum(axis=-1, keepdims=True)

    return _picked(chain, states, pick, directions).sum(axis=-1)


def block_diagonals(
    chain: TracedChain, states: Array, groups: np.ndarray, found: np.ndarray
) -> Array:
    """The entries of df/dz inside ``groups: [m, k]``, as ``[L, *batch, m, k, k]``.

    If these are the groups ``found`` in the step's structure, k derivatives give all of them; else it takes w. What stands in the
    rows and columns of an entry -1 has no meaning.
    """
    width, by_rows = chain.layout.width, chain.step.has_custom_vjp
    if np.array_equal(groups, found):
        derivatives = _derivatives(chain, states, seeds(groups, width))[
            ..., groups, :
        ]  # [.., m, k, the entry that was moved]
        return jnp.swapaxes(derivatives, -1, -2) if by_rows else derivatives
    neighbours = np.full((width, groups.shape[1]), -1, np.int32)
    for group in groups:
        neighbours[group[group >= 0]] = group

    def pick(derivatives: Array, _: Array, neighbours: Array) -> Array:
        return derivatives[..., neighbours.T, jnp.arange(len(neighbours))]

    derivatives = _picked(chain, states, pick, np.eye(width), neighbours)
    derivatives = jnp.swapaxes(derivatives, -1, -2)[
        ..., groups, :
    ]  # [.., m, the entry that was moved, k]
    return derivatives if by_rows else jnp.swapaxes(derivatives, -1, -2)


def seeds(groups: np.ndarray, width: int) -> np.ndarray:
    """0/1 directions ``[k, w]``, each of which moves one entry of every group."""
    directions = np.zeros((groups.shape[1], width))
    for direction, entries in zip(directions, groups.T, strict=True):
        direction[entries[entries >= 0]] = 1
    return directions


def _picked(
    chain: TracedChain,
    states: Array,
    pick: Callable[..., Array],
    directions: np.ndarray,
    *more: np.ndarray,
) -> Array:
    """What ``pick`` keeps of the derivatives in some directions, some at a time; what it returns is joined on the last axis."""
    count = len(directions)
    at_once = min(count, max(1, AT_ONCE // max(1, states.size * states.dtype.itemsize)))
    turns = -(-count // at_once)
    operands = [np.asarray(directions, states.dtype), *more]
    padded = [
        np.concatenate([x, np.zeros((turns * at_once - count, *x.shape[1:]), x.dtype)])
        for x in operands
    ]
    parts = [jnp.asarray(x.reshape((turns, at_once, *x.shape[1:]))) for x in padded]

    def one(part: list[Array]) -> Array:
        # Or else XLA fuses what is picked with what it is picked from, and computes the step anew for every entry.
        derivatives = lax.optimization_barrier(_derivatives(chain, states, part[0]))
        return pick(derivatives, *part)

    if turns == 1:
        return one([part[0] for part in parts])
    kept = jnp.moveaxis(lax.map(one, parts), 0, -2)
    joined = kept.reshape((*kept.shape[:-2], -1))
    return joined[..., :count] if joined.shape[-1] > count else joined


def _derivatives(chain: TracedChain, states: Array, directions: np.ndarray | Array) -> Array:
    """``J d`` for every direction, one beside the other on a new last axis; J^T d where there are rows only."""
    shape = states.shape[1:]
    vectors = jnp.asarray(directions, states.dtype)
    wide = vectors.reshape((len(vectors), *(1,) * (len(shape) - 1), -1))
    basis = jnp.broadcast_to(wide, (len(vectors), *shape))

    def one(state: Array, inputs: Leaves) -> Array:
        return jax.vmap(_pushed(chain, state, inputs), out_axes=-1)(basis)

    return jax.vmap(one)(states, chain.inputs)


def _pushed(chain: TracedChain, state: Array, inputs: Leaves) -> Callable[[Array], Array]:
    """The derivative of one step, as a linear function; its transpose if the step has no other."""
    layout = chain.layout

    def f(vector: Array) -> Array:
        return layout.flatten(chain.step(layout.unflatten(vector), inputs, chain.captured))

    if not chain.step.has_custom_vjp:
        push: Callable[[Array], Array] = jax.linearize(f, state)[1]
        return push
    _, pull = jax.vjp(f, state)
    return lambda row: pull(row)[0]
