"""Jacobians from what the test of an iterate has kept are the Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton
from deeppcr.linear import Matrices
from deeppcr.linearize import Dense, Diagonal, keep_derivative, kept_blocks
from deeppcr.platforms import compiled_for
from tests.linearize.steps import MIX, W, by_rows, dense, elementwise
from tests.linearize.test_jacobian import jacobians, side_by_side
from tests.problems import L, assert_agree, normal

PAIR = {"a": normal(1, L, W), "b": normal(2, L, W)}
INPUTS = normal(5, L, W)


def own_weights(z, x):
    both = jnp.tanh(jnp.concatenate([z["a"], z["b"]]) @ x)
    return {"a": both[:W], "b": both[W:]}


@jax.custom_jvp
def rounded(z):
    return jnp.round(z, 2)


rounded.defjvps(lambda tangent, out, z: tangent * out * jnp.cos(z))


def own_forwards(z, x):
    return {"a": rounded(z["b"]) * x, "b": jnp.sin(z["a"])}


STEPS = {
    "elementwise": (elementwise, INPUTS),
    "shared weights": (dense, INPUTS),
    "own weights": (own_weights, normal(6, L, 2 * W, 2 * W)),
    "own derivative": (own_forwards, INPUTS),
}


def found(step, state, inputs, batch_ndim=0, linearization=None):
    """The chain, the states, and for a GPU what is kept and the blocks that are made of it."""
    chain, vectors = side_by_side(step, state, inputs, batch_ndim)

    @jax.jit
    def run(vectors):
        value = chain.evaluate(vectors)
        kept = keep_derivative(linearization or Dense(), chain, vectors, value)
        return kept, kept_blocks(chain, vectors, value, kept) if kept else None

    with compiled_for("cuda"):
        return chain, vectors, *run(vectors)


@pytest.mark.parametrize(("step", "inputs"), STEPS.values(), ids=STEPS)
def test_blocks_are_the_jacobians(step, inputs):
    chain, vectors, kept, blocks = found(step, PAIR, inputs)
    assert kept
    assert isinstance(blocks, Matrices)
    assert_agree(blocks.matrix, jacobians(chain, vectors))


def test_no_weights_and_no_next_states_are_kept():
    weights = normal(6, L, 2 * W, 2 * W)
    chain, vectors, kept, _ = found(lambda z, x: jnp.tanh(z @ x), normal(1, L, 2 * W), weights)
    after = np.asarray(chain.evaluate(vectors))
    assert [x.shape for x in kept] == [vectors.shape]  # 1 - tanh
    assert not np.allclose(kept[0], after)


def many(z, x):
    wide = jnp.sin(jnp.tile(jnp.concatenate([z["a"], z["b"]]), 9))
    return {"a": wide[:W] * x, "b": jnp.cos(wide).reshape(-1, W).sum(0)}


@pytest.mark.parametrize(
    ("step", "linearization"),
    [
        (by_rows, None),
        (many, None),
        (lambda z, x: {"a": z["b"] * x, "b": z["a"]}, None),
        (elementwise, Diagonal()),
    ],
    ids=["reverse mode only", "more than the states", "affine", "another linearisation"],
)
def test_nothing_is_kept(step, linearization):
    assert found(step, PAIR, INPUTS, linearization=linearization)[2] == ()


def test_nothing_is_kept_on_a_cpu_and_of_wide_states():
    wide = normal(1, L, 17)
    assert found(lambda z, x: jnp.sin(z) * x, wide, wide)[2] == ()
    chain, vectors = side_by_side(dense, PAIR, INPUTS)
    with compiled_for("cpu"):
        assert keep_derivative(Dense(), chain, vectors, chain.evaluate(vectors)) == ()


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 5}, {"damping": "auto"}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_solve_takes_the_same_iterations(options):
    chain = Chain(lambda z, x: jnp.tanh(MIX @ z / 3 + x), normal(8, L, 2 * W))
    method = Newton(linearize="dense", **options)
    solutions = {}
    for name in ("cpu", "cuda"):
        with compiled_for(name):
            run = jax.jit(lambda z: deeppcr.solve(chain, z, method=method))
            solutions[name] = run(normal(9, 2 * W))
    here, there = solutions.values()
    assert there.converged
    assert int(there.stats.iterations) == max(3, int(here.stats.iterations))
    assert_agree(there.trajectory, here.trajectory, 1e-13)
