"""Jacobi iteration is a candidate where a sample shows that a chain contracts strongly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
import depth
from tests.problems import assert_agree, normal, solve, trajectory

XS = np.asarray(normal(0, 256, 32), np.float32)
Z0 = np.zeros(32, np.float32)
WITHOUT_GRAPHS = depth.devices["H100"].replace(node_latency=None)  # where loops do not pay


def chain(norm):
    """A dense chain, whose weights have this spectral norm."""
    weight = np.asarray(normal(0, 32, 32), np.float32)
    weight = np.float32(norm / np.linalg.norm(weight, 2)) * weight
    return deeppcr.Chain(lambda z, x: jnp.tanh(z @ weight + x), XS)


def test_it_is_chosen_where_it_takes_few_iterations_and_keeps_the_promise():
    contracting = chain(0.3)
    plan = deeppcr.plan(contracting, Z0, device=WITHOUT_GRAPHS)
    best = plan.chains[0].forward[0]
    assert str(plan.method.linearize) == "zero"
    solution = solve(contracting, Z0, method=plan.method)
    assert solution.result == deeppcr.Result.CONVERGED
    assert solution.stats.iterations <= best.iterations
    assert_agree(solution.trajectory, trajectory(contracting, Z0), 1e-5)


@pytest.mark.parametrize(
    ("norm", "state"), [(2.0, Z0), (0.3, jax.ShapeDtypeStruct(Z0.shape, Z0.dtype))]
)
def test_it_is_no_candidate_of_other_chains_nor_of_shapes(norm, state):
    (found,) = deeppcr.plan(chain(norm), state, device="H100").chains
    assert found.forward
    assert not [one.name for one in found.forward if "zero" in one.name]
