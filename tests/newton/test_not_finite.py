"""States that are not finite: the sequential program's, told as such, and soon."""

import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Newton, Result

LENGTH, BAD = 40, 17
XS = np.ones((LENGTH, 2), np.float32)
Z0 = np.zeros(2, np.float32)


def step(z, x):
    return jnp.tanh(0.5 * z + x) + 0 * x


def with_bad(value):
    xs = XS.copy()
    xs[BAD, 1] = value
    return deeppcr.Chain(step, jnp.asarray(xs))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "method",
    ["sequential", "newton", Newton(window=8), Newton(damping=deeppcr.TrustRegion())],
    ids=["sequential", "newton", "window", "damping"],
)
def test_a_state_that_is_not_finite_is_never_called_converged(method, value):
    chain = with_bad(value)
    solution = deeppcr.solve(chain, Z0, method=method)
    expected = deeppcr.solve(chain, Z0, method="sequential").trajectory
    np.testing.assert_allclose(solution.trajectory, expected, rtol=1e-5)
    assert solution.result == Result.NOT_FINITE
    assert not solution.converged
    assert solution.stats.finite == BAD
    assert np.isinf(solution.stats.residual)
    assert f"finite      {BAD} of {LENGTH} states" in str(solution)


def test_newton_stops_where_the_first_state_that_is_not_finite_is_known():
    good = deeppcr.solve(deeppcr.Chain(step, XS), Z0, method="newton")
    solution = deeppcr.solve(with_bad(np.nan), Z0, method="newton")
    assert solution.stats.iterations <= good.stats.iterations
    assert solution.stats.prefix == BAD
    assert good.stats.finite == LENGTH


def test_the_step_without_a_parallel_solve_says_so_too():
    # Integers alone are run by `jax.lax.scan`, as floating states are under "sequential" and
    # "autodiff".
    solution = deeppcr.solve(with_bad(np.nan), Z0, method="sequential", adjoint="autodiff")
    assert (solution.result, solution.stats.finite) == (Result.NOT_FINITE, BAD)
    counted = deeppcr.solve(deeppcr.Chain(lambda z, x: z + 1, length=3), 0, method="sequential")
    assert (counted.result, counted.stats.finite) == (Result.CONVERGED, 3)
