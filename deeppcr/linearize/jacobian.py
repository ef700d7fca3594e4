"""Derivatives of all steps at once: full matrices, blocks on the diagonal, or the diagonal alone.

A direction is a vector ``[w]`` that all steps and batch elements share. `jax.vmap` exploits this:
the product of a direction with weights that all steps share is computed once, not L times. A step
with a `jax.custom_vjp` has reverse mode only. For it the rows of the Jacobian are computed instead
of the columns.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays.avals import like
from deeppcr.arrays.state import Leaves
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.lower import even_chunk, scan_in_chunks, steps_held

# Up to this many directions there is too little to gain by a cache.
FEW_DIRECTIONS = 4


def diagonals(chain: TracedChain, states: Array, found: np.ndarray) -> Array:
    """The diagonal of df/dz as ``[L, *batch, w]``, by k derivatives for ``found: [m, k]``.

    No two entries of one direction influence each other, so ``sum_s d_s * (J d_s)`` over 0/1
    directions ``d_s`` that add up to one is the diagonal.
    """
    width = chain.layout.width
    place, entries = _places(found, width)[1], np.arange(width)
    return _picked(chain, states, lambda each: each[..., entries, place], _seeds(found, width))


def probed_diagonals(chain: TracedChain, states: Array, probes: int) -> Array:
    """An estimate of the diagonal, as ``[L, *batch, w]``.

    The mean of ``d * (J d)`` over random signs d is the diagonal in expectation (Hutchinson's
    estimator). Its variance is the sum of the squares of the off-diagonal entries.
    """
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (probes, chain.layout.width))
    directions = signs / np.sqrt(probes)

    def pick(derivatives: Array) -> Array:
        signs = jnp.asarray(directions.T, derivatives.dtype)
        return (derivatives * jnp.broadcast_to(signs, derivatives.shape)).sum(axis=-1)

    return _picked(chain, states, pick, directions)


def block_diagonals(
    chain: TracedChain, states: Array, groups: np.ndarray, found: np.ndarray
) -> Array:
    """The entries of df/dz inside ``groups: [m, k]``, as ``[L, *batch, m, k, k]``.

    By as many derivatives as the groups ``found`` in the step's structure are large. The rows and
    columns of an entry -1 are undefined.
    """
    directions = _seeds(found, chain.layout.width)
    if np.array_equal(groups, found):
        # [.., m, k of the output, k of the input]
        return by_rows(chain, _derivatives(chain, states, directions)[..., groups, :])
    row, place = (each[groups] for each in _places(found, chain.layout.width))
    together = row[:, :, None] == row[:, None, :]

    def pick(derivatives: Array) -> Array:
        picked = derivatives[..., groups[:, :, None], place[:, None, :]]
        return picked if together.all() else jnp.where(together, picked, 0)

    return by_rows(chain, _picked(chain, states, pick, directions))


def by_rows(chain: TracedChain, derivatives: Array) -> Array:
    """Derivatives in reverse mode are rows of the Jacobian."""
    return jnp.swapaxes(derivatives, -1, -2) if chain.step.has_custom_vjp else derivatives


def _seeds(groups: np.ndarray, width: int) -> np.ndarray:
    """0/1 directions ``[k, w]``, each with one entry of every group."""
    return np.arange(groups.shape[1])[:, None] == _places(groups, width)[1]


def _places(groups: np.ndarray, width: int) -> np.ndarray:
    """For each entry its group, and its place in it: int ``[2, w]``."""
    places = np.zeros((2, width), np.int32)
    places[:, groups[groups >= 0]] = np.nonzero(groups >= 0)
    return places


def _picked(
    chain: TracedChain, states: Array, pick: Callable[[Array], Array], directions: np.ndarray
) -> Array:
    """``pick`` of the derivatives in all directions, some steps at a time."""
    # At least w steps, so that products with weights that all of them share, which are computed
    # once for each chunk, take no more time than the rest.
    each = max(1, len(directions) * states[0].size * states.dtype.itemsize)
    is_narrow = len(directions) <= FEW_DIRECTIONS
    size = steps_held(each, len(states), states.shape[-1], is_narrow)

    def some(_: None, part: tuple[Array, Leaves]) -> tuple[None, Array]:
        states, inputs = part
        steps = dataclasses.replace(chain, inputs=inputs, length=len(states))
        # Without the barrier XLA fuses `pick` with the step, which it recomputes for every entry.
        return None, pick(lax.optimization_barrier(_derivatives(steps, states, directions)))

    length = len(states)
    size = even_chunk(length, min(size, length))
    return scan_in_chunks(some, None, (states, chain.inputs), length=length, size=size)[1]


def _derivatives(chain: TracedChain, states: Array, directions: np.ndarray | Array) -> Array:
    """``J d`` for every direction, on a new last axis; ``J^T d`` in reverse mode only."""
    shape = states.shape[1:]
    vectors = jnp.asarray(directions, states.dtype)
    wide = vectors.reshape((len(vectors), *(1,) * (len(shape) - 1), -1))
    basis = like(jnp.broadcast_to(wide, (len(vectors), *shape)), states)

    def one(state: Array, inputs: Leaves) -> Array:
        linear = derivative(chain, state, inputs)
        return jax.vmap(linear, out_axes=-1)(basis)

    with differentiable(chain.step):
        return jax.vmap(one)(states, chain.inputs)


@contextmanager
def differentiable(step: Step) -> Iterator[None]:
    """Raise an error that says what to do if jax cannot differentiate the step."""
    try:
        yield
    except Exception as error:
        if not step.not_differentiable:
            raise
        raise ValueError(
            "the step has no derivative with respect to the state, which Newton's method needs: "
            f'{step.not_differentiable} Expected method="sequential", blocks that are no '
            'derivatives of the step (linearize="identity", "zero" or deeppcr.Surrogate), or a '
            "step with a jax.custom_jvp."
        ) from error


def derivative(chain: TracedChain, state: Array, inputs: Leaves) -> Callable[[Array], Array]:
    """That of one step, a linear function of vectors; its transpose in reverse mode only."""
    layout, step = chain.layout, chain.step

    def f(vector: Array) -> Array:
        leaves = layout.unflatten(vector)
        return layout.flatten(step(leaves, inputs, chain.captured, step.at_once))

    if not step.has_custom_vjp:
        linear: Callable[[Array], Array] = jax.linearize(f, state)[1]
        return linear
    pull = jax.vjp(f, state)[1]
    return lambda row: pull(row)[0]
