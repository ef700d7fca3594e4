"""What "auto" chooses where Newton's method pays off: its adjoint, and its statistics."""

import jax

import deeppcr
from tests.planning.chains import CHAINS
from tests.problems import assert_agree, trajectory


def test_an_adjoint_is_found_for_a_method_of_the_users(parallel):
    method = deeppcr.Newton(linearize="identity", max_iterations=3)
    chain, z0 = CHAINS["elementwise"]

    ours = jax.grad(lambda z: deeppcr.solve(chain, z, method=method).trajectory.sum())
    expected = jax.grad(lambda z: trajectory(chain, z).sum())
    assert_agree(jax.jit(ours)(z0), jax.jit(expected)(z0), 1e-8)


def test_statistics_survive_differentiation(parallel):
    chain, z0 = CHAINS["elementwise"]

    def loss(z):
        solution = deeppcr.solve(chain, z)
        return solution.value.sum(), (solution.stats, solution.result)

    @jax.jit
    def both(z):
        return loss(z)[1], jax.grad(loss, has_aux=True)(z)[1]

    plain, kept = both(z0)
    assert_agree(kept, plain)
    assert int(plain[0].iterations) > 1
