"""Products of blocks that lose all digits where no state does: every solver agrees with the loop.

The chain is similar to a stable one, by a transform of a large condition. All is in float32, beside
the sequential program in float64. The error of a solution is compared to that of the sequential
program in float32.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import deeppcr
from deeppcr import solve_bidiagonal
from tests.linear.loop import compiled

WIDTH, LENGTH = 3, 24
FACTOR = 16


@cache
def transform():
    """A matrix of condition 1e4, and its inverse."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0] for _ in range(2))
    p = left * np.logspace(0, -4, WIDTH) @ right
    return p, np.linalg.inv(p)


def chain():
    """The arrays of a chain, in float32: the transform, its inverse, start and inputs."""
    rng, (p, q) = np.random.default_rng(1), transform()
    start, inputs = p @ rng.normal(size=WIDTH), rng.normal(size=(LENGTH, WIDTH))
    return [np.float32(x) for x in (p, q, start / 10, inputs / 3)]


def recurrence():
    """The same for a recurrence: its blocks, and b."""
    p, q, _, inputs = chain()
    return [np.float32(np.float64(p) @ (np.tanh(inputs)[:, :, None] * q)), inputs]


def derivatives(scan, arrays):
    """Gradients of all states and of the last one, and tangents."""
    p, q, *moving = arrays

    def run(start, inputs):
        return scan(lambda h, x: (p @ jnp.tanh(q @ h + x),) * 2, start, inputs)

    (last, states), pull = jax.vjp(run, *moving)
    by_all = pull((jnp.zeros_like(last), jnp.ones_like(states)))
    by_last = pull((jnp.ones_like(last), jnp.zeros_like(states)))
    return [*by_all, by_last[1], jax.jvp(run, moving, moving)[1][1]]


def solutions(solve, arrays):
    """Of recurrences in both directions, and gradients."""
    A, inputs = arrays

    def forwards(b):
        return solve(A, b)

    def backwards(b):
        return solve(A, b, reverse=True)

    found = [jax.vjp(of, inputs) for of in (forwards, backwards)]
    return [x for y, pull in found for x in (y, *pull(inputs))]


def step_by_step(A, b, reverse=False):
    def step(y, x):
        return (x[0] @ y + x[1],) * 2

    return lax.scan(step, jnp.zeros_like(b[0]), (A, b), reverse=reverse)[1]


ONE_BY_ONE = {
    name: compiled(partial(name, by))
    for name, by in ((derivatives, lax.scan), (solutions, step_by_step))
}


def assert_as_accurate(what, by, arrays):
    """As the sequential program, up to a factor."""
    sequential = ONE_BY_ONE[what]
    exact = in_numpy(sequential([np.float64(x) for x in arrays]))
    usual, found = in_numpy(sequential(arrays)), in_numpy(compiled(partial(what, by))(arrays))
    for one, other, right in zip(found, usual, exact, strict=True):
        error, expected = (np.abs(x - right).max() for x in (one, other))
        least = np.finfo(np.float32).eps * np.abs(right).max()
        assert error <= FACTOR * max(expected, least)


def in_numpy(arrays):
    return [np.asarray(x, np.float64) for x in arrays]


@pytest.mark.parametrize("solver", ["pcr", "prefix_scan"])
def test_derivatives_of_a_chain(solver):
    scan = partial(deeppcr.scan, method="sequential", adjoint=solver)
    assert_as_accurate(derivatives, scan, chain())


@pytest.mark.parametrize("solver", ["pcr", "cyclic_reduction", "prefix_scan"])
def test_solve_bidiagonal(solver):
    assert_as_accurate(solutions, partial(solve_bidiagonal, solver=solver), recurrence())


def test_on_several_devices():
    mesh = jax.make_mesh((2,), ("chain",), devices=jax.devices()[:2])
    solver = deeppcr.Sharded(mesh, "chain", "pcr")
    assert_as_accurate(solutions, partial(solve_bidiagonal, solver=solver), recurrence())
