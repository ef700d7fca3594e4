"""Damping: the same answer, in fewer iterations where plain ones overflow, else in as many."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import BlockDiagonal, Chain, Newton, Result, TrustRegion
from deeppcr.linear import BlockDiagonals, Diagonals, Matrices, Scalars, Zeros
from deeppcr.newton.damping import _limit
from tests.problems import (
    PROBLEMS,
    L,
    assert_agree,
    normal,
    oracle,
    solve,
    trajectory,
)

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


def test_no_more_iterations_where_plain_ones_do_well():
    z0 = normal(2, 3)
    plain, damped = (
        solve(CONTRACTING, z0, method=Newton(damping=d)) for d in (None, TrustRegion())
    )
    assert damped.stats.iterations <= plain.stats.iterations + 1
    assert_agree(damped.trajectory, trajectory(CONTRACTING, z0))


BISTABLE = Chain(lambda z, x: z + 0.2 * (z - z**3) + 0.3 * x, normal(4, 1000))


def test_auto_solves_what_plain_iterations_lose():
    """Two attractors: plain iterates overflow. Each example under `jax.vmap` for itself."""
    starts = jnp.array([0.1, -2.0])
    plain, auto = (
        jax.jit(jax.vmap(partial(deeppcr.solve, BISTABLE, method=method)))(starts)
        for method in (Newton(), Newton(damping="auto"))
    )
    assert (plain.result == Result.FINISHED_SEQUENTIALLY).all()
    assert (auto.result == Result.CONVERGED).all()
    assert (auto.stats.iterations < 64).all()
    assert_agree(auto.trajectory, jnp.stack([trajectory(BISTABLE, z) for z in starts]))


def test_auto_is_plain_where_plain_iterations_do_well():
    z0 = normal(2, 3)
    plain, auto = (solve(CONTRACTING, z0, method=Newton(damping=d)) for d in (None, "auto"))
    assert auto.stats.iterations == plain.stats.iterations
    assert_agree(auto.trajectory, plain.trajectory, 0)


def test_auto_loses_nothing_that_plain_iterations_solve():
    """Chaos: a trust region is tried in vain, and each plain iteration makes a state right."""
    chaos, z0 = Chain(lambda z, _: 3.9 * z * (1 - z), length=50), jnp.array(0.4)
    plain, auto = (
        solve(chaos, z0, method=Newton(damping=d, max_iterations=50, record=True))
        for d in (None, "auto")
    )
    assert plain.result == auto.result == Result.CONVERGED
    assert auto.stats.iterations <= 2 * 50
    assert jnp.isfinite(auto.stats.residuals[auto.stats.iterations])
    assert_agree(auto.trajectory, trajectory(chaos, z0), 1e-8)


def test_blocks_of_a_batch():
    problem = PROBLEMS["lstm"]
    newton = Newton(linearize=BlockDiagonal(2), damping=TrustRegion(2.0))
    scan = partial(deeppcr.scan, method=newton, batch_ndim=1)
    values, _ = oracle(problem)
    assert_agree(jax.jit(partial(problem, scan))(*problem.arguments), values)


@pytest.mark.parametrize("damping", [TrustRegion(), "auto"], ids=["trust region", "auto"])
def test_in_a_window(damping):
    z0 = jnp.array(0.4)
    solution = solve(PERIODIC, z0, method=Newton(damping=damping, window=10))
    assert solution.converged
    assert_agree(solution.trajectory, trajectory(PERIODIC, z0))


def test_states_that_overflow_along_the_way():
    """exp(z) of a state that is a little off overflows at once; the chain itself stays small."""
    chain = Chain(lambda z, x: 0.1 * jnp.exp(z) - 1 + x, normal(3, 30, 2))
    guess = jnp.full((30, 2), 800.0)
    solution = solve(chain, jnp.zeros(2), method=Newton(damping=TrustRegion(), initial_guess=guess))
    assert_agree(solution.trajectory, trajectory(chain, jnp.zeros(2)))


def test_the_limit():
    update = jnp.array([[0.0, 0.0], [3.0, -4.0], [jnp.inf, 0.0], [jnp.nan, 1.0], [1e300, 0.0]])
    assert_agree(_limit(update), jnp.array([1.0, 1 / jnp.sqrt(17.0), 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("kind", ["matrices", "block-diagonals", "diagonals", "scalars", "zeros"])
def test_blocks_times_a_factor_for_every_example(kind):
    y, factor = normal(0, 5, 2, 4), jnp.abs(normal(1, 5, 2))
    blocks = {
        "matrices": Matrices(normal(2, 5, 2, 4, 4)),
        "block-diagonals": BlockDiagonals(normal(3, 5, 2, 2, 2, 2), [[0, 2], [1, 3]]),
        "diagonals": Diagonals(normal(4, 5, 2, 4)),
        "scalars": Scalars(normal(5, 5), (2,), 4),
        "zeros": Zeros.like(y),
    }[kind]
    if kind == "scalars":  # one number for all examples
        factor = jnp.broadcast_to(factor.min(1, keepdims=True), factor.shape)
    assert_agree(blocks.scale(factor).apply(y), factor[..., None] * blocks.apply(y))


@pytest.mark.parametrize("radius", [0, -1.0, float("nan")])
def test_a_radius_that_makes_no_sense(radius):
    with pytest.raises(ValueError, match=r"radius is .*expected a number > 0"):
        TrustRegion(radius)


def test_another_damping():
    with pytest.raises(TypeError, match=r'damping is 0\.5, expected "auto", TrustRegion'):
        Newton(damping=0.5)
