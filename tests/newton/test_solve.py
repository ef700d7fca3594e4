"""`solve`: how Newton converges, what it says about it, and what it does when it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Newton, Result
from tests.problems import L, assert_agree, normal, solve, trajectory, trips

EPS = float(jnp.finfo(jnp.float64).eps)
WEIGHT = normal(0, 3, 3, scale=0.5)
XS = normal(1, L, 3)
Z0 = normal(2, 3)


def scaled(z, inputs):
    scale, x = inputs
    return scale * jnp.tanh(WEIGHT @ (z / scale) + x)


CHAIN = deeppcr.Chain(scaled, (np.ones(L), XS))
RATE = 3.9
CHAOS = deeppcr.Chain(lambda z, _: RATE * z * (1 - z), length=200)  # Lyapunov exponent about 0.5


def test_stats_of_a_chain_that_converges():
    solution = solve(CHAIN, Z0, method="newton")
    assert_agree(solution.trajectory, trajectory(CHAIN, Z0))
    assert_agree(solution.value, solution.trajectory[-1])
    assert solution.result == Result.CONVERGED
    assert solution.converged
    assert solution.stats.prefix == L
    assert 2 <= solution.stats.iterations <= 9
    assert solution.stats.residual <= 16 * EPS


def test_chaos_is_finished_sequentially_and_gives_the_sequential_answer():
    z0 = jnp.array(0.4)
    solution = solve(CHAOS, z0, method="newton")
    assert solution.result == Result.FINISHED_SEQUENTIALLY
    assert solution.converged
    assert 10 < solution.stats.prefix < 200
    assert solution.stats.iterations == 64
    states = np.concatenate([z0[None], solution.trajectory])
    # Every step of it is right ...
    assert_agree(states[1:], RATE * states[:-1] * (1 - states[:-1]), 4 * EPS)
    # ... and so is all of it: a difference in the last bit would be of order one after 75 steps.
    assert_agree(states[1:], trajectory(CHAOS, z0))


def test_raise_says_what_happened():
    newton = Newton(on_failure="raise", max_iterations=20)
    with pytest.raises(
        deeppcr.NotConverged, match=r"\d+ of 200 states after 20 iterations.*residual"
    ):
        deeppcr.scan(
            lambda z, _: (CHAOS.step(z, _), None), jnp.array(0.4), length=200, method=newton
        )
    assert deeppcr.solve(CHAIN, Z0, method=newton).result == Result.CONVERGED


def test_raise_is_refused_where_jax_traces():
    newton = Newton(on_failure="raise")
    with pytest.raises(ValueError, match=r'on_failure is "raise".*"return"'):
        jax.jit(lambda z: deeppcr.solve(CHAOS, z, method=newton).value)(jnp.array(0.4))


def rotated(z, inputs):
    rotation, x = inputs
    return jnp.sin(rotation @ z + x)


@pytest.mark.parametrize("gain", [1.0, 1.2, 2.0])
def test_a_chain_that_forgets_nothing(gain):
    """Isometries and expansions: small residuals are no proof, updates have to be small too."""
    rotation = gain * np.linalg.qr(normal(5, 3, 3))[0]
    chain = deeppcr.Chain(rotated, (np.stack([rotation] * 60), normal(6, 60, 3)))
    found = np.asarray(solve(chain, Z0, method="newton").trajectory)
    after = np.sin(np.concatenate([Z0[None], found[:-1]]) @ rotation.T + chain.inputs[1])
    assert_agree(found, after, 64 * EPS)
    if gain < 1.5:
        assert_agree(found, trajectory(chain, Z0), 1e-9)


def test_a_loose_tolerance_stops_earlier():
    """An absolute one: tests/newton/test_tolerance.py."""
    tight, loose = (solve(CHAIN, Z0, method=method) for method in ("newton", Newton(rtol=1e-2)))
    assert loose.stats.iterations < tight.stats.iterations
    assert loose.result == Result.CONVERGED
    assert_agree(loose.trajectory, tight.trajectory, 0.1)


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e-200, 1e200])
def test_tolerances_are_relative_to_the_states(scale):
    chain = deeppcr.Chain(scaled, (np.full(L, scale), XS))
    solution = solve(chain, scale * Z0, method="newton")
    assert solution.result == Result.CONVERGED
    assert solution.stats.iterations <= 9
    assert_agree(solution.trajectory, trajectory(chain, scale * Z0))


def test_the_right_guess_takes_no_iteration():
    chain = deeppcr.Chain(
        lambda z, x: jnp.abs(z - x), jnp.round(8 * XS)
    )  # of integers: no compiler rounds them
    known = trajectory(chain, jnp.ones(3))
    solution = solve(chain, jnp.ones(3), method=Newton(initial_guess=lambda z0, xs: known))
    assert solution.stats.iterations == trips(0)
    assert_agree(solution.trajectory, known)


def test_a_step_with_rounding_errors_of_its_own():
    """As of a solve inside: residuals and updates stand still far above the state's own rounding."""

    def step(z, x):
        y, large = jnp.tanh(WEIGHT @ z + x), 1e4
        return y + 0.01 * ((y + large) ** 2 - large**2 - 2 * large * y)  # its square, cancelled

    chain = deeppcr.Chain(step, normal(7, 60, 3))
    solution = solve(chain, Z0, method="newton")
    assert solution.result == Result.CONVERGED
    assert solution.stats.residual > 1000 * EPS
    assert solution.stats.iterations < 16
    assert_agree(solution.trajectory, trajectory(chain, Z0), 1e-9)
