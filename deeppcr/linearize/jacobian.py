"""Derivatives of all steps at once: full matrices, blocks on the diagonal, or the diagonal alone.

A direction is a vector ``[w]`` that all steps and batch elements share. `jax.vmap` exploits this:
the product of a direction with weights that all steps share is computed once, not L times. A step
with a `jax.custom_vjp` has reverse mode only. For it the rows of the Jacobian are computed instead
of the columns.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.avals import like
from deeppcr.chain import TracedChain
from deeppcr.platforms import platform
from deeppcr.state import Leaves
from deeppcr.step import Step

# Bytes of derivatives held at once, if only some of their entries are kept.
AT_ONCE = 1 << 26
# The same on a CPU, so that they stay in the cache: 0.03 to 0.2 of the time for a tanh RNN, a GRU
# and an MLP of 32 entries and 65,536 steps (jax 0.10.2, 2 cores).
CACHED = 1 << 22
# Up to this many directions there is too little to gain.
FEW = 4


def diagonals(chain: TracedChain, states: Array, directions: np.ndarray) -> Array:
    """``sum_s d_s * (J d_s)`` for directions ``d: [n, w]``, as ``[L, *batch, w]``."""
    entries, only = np.arange(chain.layout.width), directions.argmax(axis=0)
    # Whether every entry is 1 in one direction and 0 in all others.
    is_partition = (directions == np.eye(len(directions))[:, only]).all()

    def pick(derivatives: Array) -> Array:
        if is_partition:
            return derivatives[..., entries, only]
        signs = jnp.asarray(directions.T, derivatives.dtype)
        return (derivatives * jnp.broadcast_to(signs, derivatives.shape)).sum(axis=-1)

    return _picked(chain, states, pick, directions)


def block_diagonals(
    chain: TracedChain, states: Array, groups: np.ndarray, found: np.ndarray
) -> Array:
    """The entries of df/dz inside ``groups: [m, k]``, as ``[L, *batch, m, k, k]``.

    It takes k derivatives if these are the groups ``found`` in the step's structure, else w. The
    rows and columns of an entry -1 are undefined.
    """
    width, by_rows = chain.layout.width, chain.step.has_custom_vjp
    if np.array_equal(groups, found):
        # [.., m, k of the output, k of the input]
        derivatives = _derivatives(chain, states, seeds(groups, width))[..., groups, :]
        return jnp.swapaxes(derivatives, -1, -2) if by_rows else derivatives
    neighbours = np.full((width, groups.shape[1]), -1, np.int32)
    for group in groups:
        neighbours[group[group >= 0]] = group

    derivatives = _picked(
        chain, states, lambda found: found[..., neighbours.T, np.arange(width)], np.eye(width)
    )
    # [.., m, k of the input, k of the output]
    derivatives = jnp.swapaxes(derivatives, -1, -2)[..., groups, :]
    return derivatives if by_rows else jnp.swapaxes(derivatives, -1, -2)


def seeds(groups: np.ndarray, width: int) -> np.ndarray:
    """0/1 directions ``[k, w]``, each with one entry of every group."""
    directions = np.zeros((groups.shape[1], width))
    for direction, entries in zip(directions, groups.T, strict=True):
        direction[entries[entries >= 0]] = 1
    return directions


def _picked(
    chain: TracedChain, states: Array, pick: Callable[[Array], Array], directions: np.ndarray
) -> Array:
    """``pick`` of the derivatives in all directions, some steps at a time."""
    length, size = len(states), _steps_at_once(states, len(directions))

    def some(chain: TracedChain, states: Array) -> Array:
        # Without the barrier XLA fuses `pick` with the step, which it recomputes for every entry.
        return pick(lax.optimization_barrier(_derivatives(chain, states, directions)))

    if size >= length:
        return some(chain, states)
    # The last chunk begins where it is as long as the others.
    starts = np.minimum(np.arange(0, length, size), length - size).astype(np.int32)
    kept = lax.map(
        lambda start: some(
            chain.window(start, size), lax.dynamic_slice_in_dim(states, start, size)
        ),
        starts,
    )
    joined = kept.reshape((-1, *kept.shape[2:]))
    new = length - size * (len(starts) - 1)  # steps of the last chunk that are in no other
    return joined if new == size else jnp.concatenate([joined[: length - new], joined[-new:]])


def _steps_at_once(states: Array, directions: int) -> int:
    """The number of steps whose derivatives in all directions are held at once.

    On a CPU at least w, so that products with weights that all steps share, which are computed once
    for each chunk, take no more time than the rest.
    """
    each = max(1, directions * states[0].size * states.dtype.itemsize)
    if platform() != "cpu":
        return max(1, AT_ONCE // each)
    return len(states) if directions <= FEW else max(states.shape[-1], CACHED // each)


def _derivatives(chain: TracedChain, states: Array, directions: np.ndarray | Array) -> Array:
    """``J d`` for every direction, on a new last axis; ``J^T d`` in reverse mode only."""
    shape = states.shape[1:]
    vectors = jnp.asarray(directions, states.dtype)
    wide = vectors.reshape((len(vectors), *(1,) * (len(shape) - 1), -1))
    basis = like(jnp.broadcast_to(wide, (len(vectors), *shape)), states)

    def one(state: Array, inputs: Leaves) -> Array:
        return jax.vmap(pushed(chain, state, inputs), out_axes=-1)(basis)

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


def pushed(chain: TracedChain, state: Array, inputs: Leaves) -> Callable[[Array], Array]:
    """The derivative of one step as a linear function; its transpose in reverse mode only."""
    layout, step = chain.layout, chain.step

    def f(vector: Array) -> Array:
        leaves = layout.unflatten(vector)
        return layout.flatten(step(leaves, inputs, chain.captured, step.at_once))

    if not chain.step.has_custom_vjp:
        push: Callable[[Array], Array] = jax.linearize(f, state)[1]
        return push
    _, pull = jax.vjp(f, state)
    return lambda row: pull(row)[0]
