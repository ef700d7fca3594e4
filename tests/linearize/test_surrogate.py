"""Blocks of another function, and clipped ones: the solution is that of the step itself."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Adjoint, Chain, Clipped, Diagonal, Newton, Surrogate
from deeppcr.chain.chain import trace_carry, with_outputs
from deeppcr.linear import Diagonals, Matrices
from tests.problems import assert_agree, normal, trajectory

L, W = 40, 3
WEIGHT = normal(0, W, W, scale=0.4)
NEAR = WEIGHT + normal(1, W, W, scale=0.02)
XS, Z0 = normal(2, L, W), normal(3, W)


def rnn(z, x):
    return jnp.tanh(WEIGHT @ z + x)


def near(z, x):
    return jnp.tanh(NEAR @ z + x)


def norms(z, x):
    """Its derivative is NaN where z is 0, as the norm's is."""
    return jnp.tanh(WEIGHT @ z + 0.1 * jnp.linalg.norm(z) + x)


def smooth_norms(z, x):
    return jnp.tanh(WEIGHT @ z + 0.1 * jnp.sqrt((z**2).sum() + 1e-6) + x)


def metropolis(gate):
    """A step of the Metropolis algorithm on a Gaussian."""

    def step(z, x):
        noise, uniform = x
        new = z + noise
        accepts = gate(((z**2).sum() - (new**2).sum()) / 2 - jnp.log(uniform))
        return accepts * new + (1 - accepts) * z

    return step


def hard(x):
    return jnp.where(x > 0, 1.0, 0.0)


DRAWS = normal(4, L, 2), jnp.asarray(np.random.default_rng(5).uniform(size=L))
SPARSE = jax.device_put(np.where(np.arange(L)[:, None] < 5, 0.0, XS))
CASES = {  # a chain, its initial state, and what is linearised instead of its step
    "a soft gate": (
        Chain(metropolis(hard), DRAWS),
        jnp.zeros(2),
        Surrogate(metropolis(jax.nn.sigmoid)),
    ),
    "a smooth norm": (Chain(norms, SPARSE), jnp.zeros(W), Surrogate(smooth_norms)),
    "clipped surrogate": (Chain(rnn, XS), Z0, Clipped(Surrogate(near), 0.1)),
}


def iterate(chain, z0, linearize, **options):
    return deeppcr.solve(chain, z0, method=Newton(linearize=linearize), **options)


@pytest.mark.parametrize("name", CASES)
def test_the_solution_is_that_of_the_step(name):
    chain, z0, linearize = CASES[name]
    method = Newton(linearize=linearize, linear="sequential")
    solution = deeppcr.solve(chain, z0, method=method)
    assert solution.result == deeppcr.Result.CONVERGED
    assert_agree(solution.trajectory, trajectory(chain, z0))
    assert solution.method == deeppcr.SolvedBy.NEWTON


def test_blocks_are_those_of_the_surrogate():
    states = normal(6, L, W)
    chain, _ = trace_carry(rnn, Z0, XS, L, 0, "z0", adapt=with_outputs)

    @jax.jit
    def blocks(states):
        clipped = Clipped(Surrogate(near, Diagonal()), 0.2)
        found = (
            Surrogate(near).traced(chain),
            clipped.traced(chain),
            Surrogate(jnp.add).traced(chain),
            Clipped("identity", 0.5),
        )
        jacobians = jax.vmap(jax.jacfwd(near))(states, XS)
        return jacobians, [each.blocks(chain, states) for each in found]

    jacobians, (dense, clipped, narrow, identity) = blocks(states)
    assert isinstance(dense, Matrices)
    assert_agree(dense.matrix, jacobians, 1e-13)
    diagonal = np.diagonal(jacobians, axis1=1, axis2=2)
    assert np.abs(diagonal).max() > 0.2
    assert_agree(clipped.diagonal, np.clip(diagonal, -0.2, 0.2), 1e-13)
    # The structure is the surrogate's, which is narrower than that of the step.
    assert isinstance(narrow, Diagonals)
    assert_agree(identity.scalar, np.full(L, 0.5))


def loss(weight, shift, method, **options):
    """Of a chain whose step and surrogate close over arrays."""
    step, other = (lambda w: lambda z, x: jnp.tanh(w @ z + x))(weight), shift
    if method is None:
        method = Newton(linearize=Surrogate(lambda z, x: jnp.tanh((weight + other) @ z + x)))
    solution = deeppcr.solve(Chain(step, XS), Z0, method=method, **options)
    return (solution.trajectory**2).sum()


@cache
def gradients(method, adjoint="auto"):
    """Values and gradients of two examples; ``method`` None is Newton's with a surrogate."""
    each = jax.value_and_grad(lambda w, s: loss(w, s, method, adjoint=adjoint), (0, 1))
    shift = NEAR - WEIGHT
    return jax.jit(jax.vmap(each))(np.stack([WEIGHT, 0.9 * WEIGHT]), np.stack([shift, -shift]))


@pytest.mark.parametrize(
    "adjoint", ["auto", Adjoint(linearize=Surrogate(near))], ids=["auto", "surrogate"]
)
def test_gradients_are_those_of_the_step(adjoint):
    (value, (by_weight, by_shift)), (other, (expected, _)) = (
        gradients(None, adjoint),
        gradients("sequential"),
    )
    assert_agree((value, by_weight), (other, expected))
    assert not by_shift.any()


def test_eager_calls_see_what_the_surrogate_closes_over(compiled):
    weight = WEIGHT

    def iterations():
        step = Surrogate(lambda z, x: jnp.tanh(weight @ z + x))
        return iterate(Chain(lambda z, x: rnn(z, x), XS), Z0, step).stats.iterations

    first = iterations()
    weight = 0.0 * WEIGHT
    compiled.clear()
    second = iterations()
    assert not compiled
    assert second > first + 5
    weight = WEIGHT
    assert iterations() == first
