"""States that are not finite: the sequential program's, told as such, and soon."""

import jax
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


def test_an_iterate_that_overflows_is_not_converged_and_not_the_programs():
    chain = deeppcr.Chain(lambda z, x: 3.9 * z * (1 - z) + x, jnp.zeros(60, jnp.float32))
    newton = Newton(max_iterations=3, on_failure="return")
    solution = deeppcr.solve(chain, np.float32(0.3), method=newton)
    assert solution.result == Result.NOT_CONVERGED
    assert "not converged" in str(solution)


def test_each_example_has_its_own_result():
    starts = np.zeros((3, 2), np.float32)
    starts[1] = np.nan
    run = jax.vmap(lambda z: deeppcr.solve(deeppcr.Chain(step, XS), z, method="newton"))
    solutions = jax.jit(run)(starts)
    np.testing.assert_array_equal(solutions.converged, [True, False, True])
    np.testing.assert_array_equal(solutions.stats.finite, [LENGTH, 0, LENGTH])


def test_the_residual_is_that_of_what_is_returned():
    chain = deeppcr.Chain(lambda z, x: 3.9 * z * (1 - z) + x, jnp.zeros(60, jnp.float32))
    solution = deeppcr.solve(chain, np.float32(0.3), method=Newton(max_iterations=3))
    assert solution.result == Result.FINISHED_SEQUENTIALLY
    assert solution.stats.residual == 0
    assert solution.stats.prefix < 60
    assert "by Newton's method, the rest sequentially" in str(solution)
