"""A step that is affine in its state: one iteration, unless blocks amplify rounding errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Chain, Newton
from deeppcr.chain.chain import trace_chain
from tests.problems import assert_agree, normal, solve, trajectory, trips

LENGTH, WIDTH = 40, 4
SHARE = jax.device_put(np.random.default_rng(0).uniform(size=(LENGTH, WIDTH)))
XS = SHARE, normal(1, LENGTH, WIDTH)
Z0 = normal(2, WIDTH)
MIXED = jax.device_put(np.full((WIDTH, WIDTH), 1 / WIDTH))


def rotated(z, x):
    c, s = jnp.cos(x[0][0]), jnp.sin(x[0][0])
    return jnp.concatenate([(c * z - s * z[::-1])[:2], (s * z[::-1] + c * z)[2:]]) + x[1]


def in_a_loop(z, x):
    return jax.lax.scan(lambda z, a: (a * z + x[1], None), z, x[0][:2])[0]


@jax.custom_jvp
def doubled(z):
    """Twice its operand, with the derivative of something else."""
    return 2 * z


@doubled.defjvp
def _(primals, tangents):
    return doubled(*primals), tangents[0]


AFFINE = {
    "dense": lambda z, x: x[0] * (z @ MIXED) + x[1],
    "rotations": rotated,
    "a choice by the input": lambda z, x: jnp.where(x[0] > 0.5, z, x[1]),
    "in a loop": in_a_loop,
    "solved for": lambda z, x: (
        jnp.linalg.solve(3 * jnp.eye(WIDTH) + x[0][:, None] * MIXED, z) + x[1]
    ),
}
OTHERS = {
    "a product": lambda z, x: z * z[::-1],
    "a choice by the state": lambda z, x: jnp.where(z > 0, z, x[1]),
    "rounded": lambda z, x: 0.5 * z + jnp.floor(z),
    "a stopped derivative": lambda z, x: 0.5 * z + jax.lax.stop_gradient(z),
    "a derivative of one's own": lambda z, x: 0.1 * doubled(z) + x[1],
}


def step_of(f):
    return trace_chain(lambda z, x: (f(z, x), None), Z0, XS, LENGTH, 0, "z0").step


@pytest.mark.parametrize("name", AFFINE)
def test_an_affine_step_takes_one_iteration(name):
    assert step_of(AFFINE[name]).is_affine
    chain = Chain(AFFINE[name], XS)
    solution = solve(chain, Z0, method=Newton())
    assert solution.converged
    assert solution.stats.iterations == trips(1)
    assert_agree(solution.trajectory, trajectory(chain, Z0), 1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_step_is_taken_for_affine(name):
    assert not step_of(OTHERS[name]).is_affine


# Products of blocks round in another order: what they make is not called converged.
@pytest.mark.parametrize("linear", ["sequential", "pcr"])
def test_amplified_rounding_errors_are_those_of_the_program(linear):
    """Every solution of ``z = 3 z + x`` but one grows, and its rounding errors do in any case."""
    states = np.sin(np.arange(LENGTH + 1.0))
    chain = Chain(lambda z, x: 3 * z + x, jax.device_put(states[1:] - 3 * states[:-1]))
    solution = solve(chain, jax.device_put(states[0]), method=Newton(linear=linear))
    expected = trajectory(chain, jax.device_put(states[0]))
    assert abs(expected[-1] - states[-1]) > 1  # they have grown that much
    assert_agree(solution.trajectory, expected, 1e-12)
