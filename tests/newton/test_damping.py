"""A trust region: the same answer, in fewer iterations, and where plain ones overflow."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import BlockDiagonal, Chain, Newton, Result, Scalar, TrustRegion
from deeppcr.newton.damping import shrinkage
from experiments.models.published import mala_chain
from tests.problems import L, assert_agree, normal, solve, trajectory

PERIODIC = Chain(
    lambda z, _: 3.2 * z * (1 - z), length=100
)  # ends in two values, from which iterates stray far
WEIGHT = normal(0, 3, 3, scale=0.5)
CONTRACTING = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), normal(1, L, 3))


def test_fewer_iterations_where_plain_ones_stray():
    z0 = jnp.array(0.4)
    plain, damped = (
        solve(PERIODIC, z0, method=Newton(max_iterations=101, damping=d))
        for d in (None, TrustRegion())
    )
    assert damped.result == Result.CONVERGED
    assert_agree(damped.trajectory, trajectory(PERIODIC, z0))
    assert int(damped.stats.iterations) < 0.75 * int(plain.stats.iterations)
    assert damped.stats.iterations < 42  # 36; 47 where updates grow, and are clipped at the end


BISTABLE = Chain(lambda z, x: z + 0.2 * (z - z**3) + 0.3 * x, normal(4, 1000))


def test_it_solves_what_plain_iterations_lose():
    """Two attractors: plain iterates overflow. Each example under `jax.vmap` for itself."""
    starts = np.array([0.1, -2.0])
    plain = solve(BISTABLE, starts[0], method=Newton())
    many = jax.vmap(partial(deeppcr.solve, BISTABLE, method=Newton(damping=TrustRegion())))
    damped = jax.jit(many)(starts)
    assert plain.result == Result.FINISHED_SEQUENTIALLY
    assert (damped.result == Result.CONVERGED).all()
    assert (damped.stats.iterations < 64).all()
    assert_agree(damped.trajectory, np.stack([trajectory(BISTABLE, z) for z in starts]))


WAVE = np.sin(np.arange(300.0))


def metropolis():
    model = mala_chain(2000, seed=2)
    return Chain(model.step, model.inputs), model.z0


LOST = {
    "overflow": lambda: (Chain(lambda z, x: z + 0.5 * (z - z**3) + 0.05 * x, WAVE), np.array(0.1)),
    "chaos": lambda: (Chain(lambda z, _: 3.9 * z * (1 - z), length=256), np.array(0.3)),
    "jumps": metropolis,
}


@pytest.mark.parametrize("name", LOST)
def test_it_solves_what_overflows_jumps_or_is_chaotic(name):
    chain, z0 = LOST[name]()
    damped = solve(chain, z0, method=Newton(damping=TrustRegion(), max_iterations=128))
    assert damped.result == Result.CONVERGED
    assert_agree(damped.trajectory, trajectory(chain, z0), 1e-4 if name == "jumps" else 1e-9)


def test_the_shrinkage_of_updates():
    update = np.array([[0.0, 0.0], [3.0, -4.0], [np.inf, 0.0], [np.nan, 1.0], [1e300, 0.0]])
    assert_agree(jax.jit(shrinkage)(update), np.array([1.0, 1 / np.sqrt(17.0), 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("linearize", ["zero", Scalar(0.3), BlockDiagonal(2)], ids=str)
def test_blocks_of_a_batch_are_scaled(linearize):
    """Each example by its own factor; one number that they share by the smallest."""
    method = Newton(linearize, damping=TrustRegion(), max_iterations=2 * L)
    chain = Chain(lambda z, x: jnp.tanh(z @ WEIGHT + x[None]), CONTRACTING.inputs)
    start = 9 * normal(5, 2, 3)
    solution = solve(chain, start, method=method, batch_ndim=1)
    assert solution.result == Result.CONVERGED
    assert_agree(solution.trajectory, trajectory(chain, start))
