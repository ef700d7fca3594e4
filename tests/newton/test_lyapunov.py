"""How fast a chain amplifies differences, and what `solve` records on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton
from tests.newton.chain import CHAIN, WEIGHT, XS, Z0
from tests.problems import L, doubled_backwards, normal, solve, trajectory

RECORD = Newton(record=True)
MANY = normal(3, 100, 3)


def by_products(chain, z0):
    """The largest exponent: the growth of an orthogonal basis (Benettin et al., 1980)."""
    states = np.concatenate([np.asarray(z0)[None], np.asarray(trajectory(chain, z0))[:-1]])
    jacobians = jax.jit(jax.vmap(jax.jacfwd(chain.step)))(states, chain.inputs)
    basis, total = np.eye(states.shape[1]), 0.0
    for jacobian in np.asarray(jacobians):
        basis, triangle = np.linalg.qr(jacobian @ basis)
        total += np.log(abs(triangle[0, 0]))
    return total / len(states)


# A chain, its initial state, another with the same derivatives in forward mode, and an accuracy.
# The logistic map is chaotic; the second one has reverse mode only.
CHAINS = {
    "chaos": (Chain(lambda z, _: 3.9 * z * (1 - z), length=400), jnp.array([0.4]), None, 1e-6),
    "reverse mode": (
        Chain(lambda z, x: doubled_backwards(0.4 * WEIGHT @ z + x), MANY),
        *(Z0, Chain(lambda z, x: 2 * jnp.sin(0.4 * WEIGHT @ z + x), MANY), 0.15),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_growth_rate(name):
    chain, z0, same, accuracy = CHAINS[name]
    found = solve(chain, z0, method=RECORD).stats.growth_rate
    assert found.shape == ()
    np.testing.assert_allclose(found, by_products(same or chain, z0), rtol=accuracy)


def test_residuals_by_iteration():
    solution = solve(CHAIN, Z0, method=Newton(linearize="diagonal", record=True))
    residuals, iterations = np.asarray(solution.stats.residuals), int(solution.stats.iterations)
    assert residuals.shape == (L + 2,)  # the guess, and up to L + 1 iterations
    assert np.isfinite(residuals[: iterations + 1]).all()
    assert np.isnan(residuals[iterations + 1 :]).all()
    assert residuals[iterations] == solution.stats.residual
    assert (np.diff(residuals[1 : iterations + 1]) < 1e-15).all()  # falling, down to rounding
    assert residuals[iterations] < 1e-13 < residuals[0]


def test_recording_changes_nothing_and_has_no_derivative():
    def value(z):
        solution = deeppcr.solve(CHAIN, z, method=RECORD)
        extra = solution.stats.growth_rate + solution.stats.residuals[0]
        return solution.value.sum() + 0.0 * extra, solution.value

    def right(z):
        return jax.lax.scan(lambda z, x: (CHAIN.step(z, x), None), z, XS)[0].sum()

    both = jax.jit(lambda z: (jax.grad(value, has_aux=True)(z), jax.grad(right)(z)))
    (found, states), expected = both(Z0)
    plain = solve(CHAIN, Z0, method="newton")
    assert plain.stats.residuals is plain.stats.growth_rate is None
    np.testing.assert_array_equal(states, plain.value)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
