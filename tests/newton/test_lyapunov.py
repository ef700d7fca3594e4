"""How fast a chain amplifies differences, and what `solve` records on the way."""

import jax
import jax.numpy as jnp
import numpy as np

import deeppcr
from deeppcr import Chain, Newton
from tests.problems import L, doubled_backwards, normal, solve, trajectory

WEIGHT = normal(0, 3, 3, scale=0.5)
XS = normal(1, L, 3)
Z0 = normal(2, 3)
CHAIN = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), XS)
RECORD = Newton(record=True)


def rate(chain, z0, method=RECORD, **options):
    return solve(chain, z0, method=method, **options).stats.growth_rate


def before_each_step(chain, z0):
    return np.concatenate([np.asarray(z0)[None], np.asarray(trajectory(chain, z0))[:-1]])


def by_products(chain, states):
    """The largest exponent, from the Jacobians at ``states`` [L, n] one after another.

    It is the growth of an orthogonal basis (Benettin et al., 1980).
    """
    jacobians = jax.jit(jax.vmap(jax.jacfwd(chain.step)))(states, chain.inputs)
    basis, total = np.eye(states.shape[1]), 0.0
    for jacobian in np.asarray(jacobians):
        basis, triangle = np.linalg.qr(jacobian @ basis)
        total += np.log(abs(triangle[0, 0]))
    return total / len(states)


def test_the_logistic_map_is_chaotic():
    """At 3.9 the exponent is 0.4945; over finitely many steps it is the mean of log |f'|."""
    chain = Chain(lambda z, _: 3.9 * z * (1 - z), length=400)
    z0 = jnp.array(0.4)
    states = before_each_step(chain, z0)
    found = rate(chain, z0)
    assert found.shape == ()
    np.testing.assert_allclose(found, np.log(np.abs(3.9 * (1 - 2 * states))).mean(), rtol=1e-6)
    assert 0.4 < found < 0.6


def test_a_network_that_contracts():
    chain = Chain(CHAIN.step, normal(3, 900, 3))
    found, expected = rate(chain, Z0), by_products(chain, before_each_step(chain, Z0))
    assert expected < -0.1
    np.testing.assert_allclose(found, expected, rtol=0.05)


def test_the_worst_example_of_a_batch_of_chains_of_one_step():
    gains = np.broadcast_to(np.array([0.5, 2.0, 1.0])[:, None], (3, 2))
    chain = Chain(lambda z, x: gains * z + x, normal(3, 1, 3, 2))
    np.testing.assert_allclose(rate(chain, np.ones((3, 2)), batch_ndim=1), np.log(2), rtol=1e-10)


def test_a_chain_with_reverse_mode_only():
    chain = Chain(lambda z, x: doubled_backwards(0.4 * WEIGHT @ z + x), normal(3, 100, 3))
    plain = Chain(lambda z, x: 2 * jnp.sin(0.4 * WEIGHT @ z + x), normal(3, 100, 3))
    found = rate(chain, Z0)
    expected = by_products(plain, before_each_step(chain, Z0))
    np.testing.assert_allclose(found, expected, rtol=0.15)


def test_a_chain_that_forgets_at_once():
    found = rate(Chain(lambda z, x: x, XS), Z0)
    assert found < -100
    assert not jnp.isnan(found)


# What is recorded


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

    (found, states), expected = jax.jit(
        lambda z: (jax.grad(value, has_aux=True)(z), jax.grad(right)(z))
    )(Z0)
    plain = solve(CHAIN, Z0, method="newton")
    assert plain.stats.residuals is plain.stats.growth_rate is None
    np.testing.assert_array_equal(states, plain.value)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# Printed


def test_a_solution_prints_as_a_table():
    text = str(solve(CHAIN, Z0, method=RECORD))
    lines = text.splitlines()
    assert lines[0].startswith("newton (")
    assert lines[1].split() == ["result", "converged"]
    assert any(line.split() == ["converged", "13", "of", "13", "states"] for line in lines)
    assert any(line.startswith("growth rate") for line in lines)
    assert len(lines) < 30
    assert "[" not in text  # no arrays
    assert "growth" not in str(solve(CHAIN, Z0, method="newton"))


def test_printing_never_raises():
    def inside(z):
        solution = deeppcr.solve(CHAIN, z, method=RECORD)
        assert str(solution)
        assert "Solution" in repr(solution)
        return solution

    jax.eval_shape(jax.grad(lambda z: inside(z).value.sum()), Z0)
    many = jax.eval_shape(jax.vmap(inside), np.stack([Z0, 2 * Z0]))
    assert "Solution" in str(many)
    assert many.stats.residuals.shape == (2, L + 2)
    assert many.stats.growth_rate.shape == (2,)
    for state in (None, np.zeros((0,))):  # no entries
        assert "converged" in str(deeppcr.solve(Chain(lambda z, x: z, XS), state, method=RECORD))
    assert str(jax.tree.map(lambda x: None, solve(CHAIN, Z0, method=RECORD)))
