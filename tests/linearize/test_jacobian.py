"""Blocks are the blocks of the Jacobian, by no more derivatives than the structure needs."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import BlockDiagonal, Diagonal
from deeppcr.chain.chain import trace_chain
from deeppcr.linearize import Dense
from deeppcr.lower.variants import CPU
from tests.linearize.steps import (
    MIX,
    W,
    by_rows,
    dense,
    elementwise,
    in_pairs,
    leaf_by_leaf,
    pairs_by_rows,
)
from tests.problems import L, assert_agree, normal


def side_by_side(step, state, inputs, batch_ndim=0):
    """The traced chain whose state before step l is ``state[l]``; and these states as vectors."""
    first = jax.tree.map(lambda leaf: leaf[0], state)
    problem = trace_chain(
        lambda z, x: (step(z, x), None),
        first,
        inputs,
        len(jax.tree.leaves(inputs)[0]),
        batch_ndim,
        "z0",
    )
    return problem, problem.layout.flatten(jax.tree.leaves(state))


def full(steps, vectors, *linearizations):
    """Blocks of each linearisation as full matrices ``[L, *batch, w, w]``."""
    width = vectors.shape[-1]
    units = np.eye(width).reshape(width, *(1,) * (vectors.ndim - 1), width)

    @jax.jit
    def columns(vectors):
        each = [linearization.blocks(steps, vectors) for linearization in linearizations]
        of = jnp.broadcast_to(units, (width, *vectors.shape))
        return [jax.vmap(blocks.apply, out_axes=-1)(of) for blocks in each]

    return columns(vectors)


def jacobians(steps, vectors):
    """The Jacobians by jax: ``[L, *batch, w, w]``."""
    jacobian = jax.jacrev if steps.step.has_custom_vjp else jax.jacfwd

    @jax.jit
    @jax.vmap
    def each(state, inputs):
        def f(vector):
            layout = steps.layout
            return layout.flatten(steps.step(layout.unflatten(vector), inputs, steps.captured))

        return jacobian(f)(state)

    found = np.asarray(each(vectors, steps.inputs))
    if vectors.ndim == 3:  # examples that do not interact: their own blocks
        found = np.stack([found[:, i, :, i] for i in range(vectors.shape[1])], axis=1)
    return found


@cache
def of_pairs(step):
    """The steps at `PAIR`, the states as vectors, and the Jacobians."""
    steps, vectors = side_by_side(step, PAIR, normal(8, L, W))
    return steps, vectors, jacobians(steps, vectors)


def within(groups, width):
    """The mask of the entries inside of groups."""
    mask = np.zeros((width, width))
    for group in groups:
        mask[np.ix_(group, group)] = 1
    return mask


PAIR = {"a": normal(5, L, W), "b": normal(6, L, W)}
NEIGHBOURS = within([[0, 1, 2], [3, 4, 5], [6, 7]], 2 * W)
PAIRED = within([[i, i + W] for i in range(W)], 2 * W)
ALL, ALONE = np.ones((2 * W, 2 * W)), np.eye(2 * W)


SOME = 3 * 2 * W * 2 * W * 8  # bytes: three of 2 W directions of 2 W steps
KINDS = [
    (Dense(), ALL),
    (Diagonal(0), ALONE),
    (BlockDiagonal(2), PAIRED),
    (BlockDiagonal(3), NEIGHBOURS),
    (BlockDiagonal(99), ALL),
]


@pytest.mark.parametrize(
    ("step", "linearization", "mask", "at_once"),
    [
        *((elementwise, *kind, 1 << 26) for kind in KINDS[:4:2]),
        *((in_pairs, *kind, 1 << 26) for kind in KINDS[1:4]),
        (leaf_by_leaf, *KINDS[3], 1 << 26),  # blocks with entries of both
        *((dense, *kind, 1 << 26) for kind in KINDS[:4]),
        *((by_rows, *kind, 1 << 26) for kind in KINDS[:3]),
        *((dense, *kind, SOME) for kind in KINDS[1::2]),
        (by_rows, *KINDS[3], SOME),
        (dense, *KINDS[4], SOME),
        (pairs_by_rows, *KINDS[2], 1 << 26),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_blocks_are_parts_of_the_jacobian(monkeypatch, step, linearization, mask, at_once):
    monkeypatch.setattr("deeppcr.lower.loops.BYTES_AT_ONCE", at_once)
    monkeypatch.setattr("deeppcr.lower.variants.CPU", CPU._replace(cache=at_once))
    steps, vectors, right = of_pairs(step)
    (blocks,) = full(steps, vectors, linearization)
    proven = step in (elementwise, in_pairs, pairs_by_rows) and not isinstance(
        linearization, Diagonal
    )
    assert_agree(blocks, right if proven else right * mask[None], 1e-13)


def test_blocks_of_a_batch():
    state = {"a": normal(5, L, 2, W), "b": normal(6, L, 2, W)}

    def step(z, x):
        return {
            "a": jnp.tanh(z["a"] @ MIX[:W, :W] + z["b"]),
            "b": z["a"] * z["b"] + jnp.broadcast_to(x, (2, W)),
        }

    steps, vectors = side_by_side(step, state, normal(8, L, W), 1)
    kinds = {Dense(): ALL, Diagonal(): ALONE, BlockDiagonal(2): PAIRED}
    right = jacobians(steps, vectors)
    for blocks, mask in zip(full(steps, vectors, *kinds), kinds.values(), strict=True):
        assert_agree(blocks, right * mask[None, None], 1e-13)


def test_probes_estimate_the_diagonal():
    steps, vectors, right = of_pairs(dense)
    # As many as there are entries: no need to guess.
    estimate, exact = full(steps, vectors, Diagonal(probes=7), Diagonal(probes=8))
    beside = np.sqrt(((right * (1 - ALONE)[None]) ** 2).sum(-1))  # the deviation by one probe
    error = np.abs(np.diagonal(np.asarray(estimate) - right, axis1=-2, axis2=-1))
    assert (error > 0).any()
    assert (error < 5 * beside / 7**0.5).all()
    assert_agree(exact, right * ALONE[None], 1e-13)
