"""Whatever trajectory Newton starts from, it ends at the sequential one; a good one is cheaper."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Coarse, Newton, Result
from deeppcr.chain.chain import trace_carry, with_outputs
from tests.newton.chain import CHAIN, Z0
from tests.problems import L, assert_agree, normal, solve, trajectory


def with_entry(states, value):
    states = np.array(states)
    states[4, 1] = value
    return states


@partial(jax.jit, static_argnums=1)
def solve_from(guess, window, z0=Z0):
    return deeppcr.solve(CHAIN, z0, method=Newton(initial_guess=guess, window=window))


GUESSES = {
    "trajectory": normal(4, L, 3),
    "infinite in part": with_entry(normal(4, L, 3), np.inf),
    "nan": np.full((L, 3), np.nan),
    "function": lambda z, xs: jnp.broadcast_to(z, xs.shape) + xs,
    "every 100 steps": Coarse(every=100),  # fewer: tests/newton/test_windows.py
}


@pytest.mark.parametrize("name", GUESSES)
def test_any_guess_leads_to_the_answer(name):
    guess = GUESSES[name]
    if hasattr(guess, "dtype"):
        solution = solve_from(guess, None)
    else:
        solution = solve(CHAIN, Z0, method=Newton(initial_guess=guess))
    assert solution.result == Result.CONVERGED
    assert solution.stats.iterations <= L
    assert_agree(solution.trajectory, trajectory(CHAIN, Z0))


@pytest.mark.parametrize(
    ("value", "window"), [(np.inf, None), (-np.inf, None), (np.nan, None), (np.nan, 4)], ids=str
)
def test_entries_that_are_not_finite_cost_no_more_than_guessing_them(value, window):
    right = trajectory(CHAIN, Z0)
    kept = solve_from(with_entry(right, Z0[1]), window)
    found = solve_from(with_entry(right, value), window)
    assert found.result == Result.CONVERGED
    assert found.stats.iterations == kept.stats.iterations < L
    assert_agree(found.trajectory, right)


def test_a_guess_that_overflows_is_recovered_from():
    """A linear chain that forgets fast: coarse steps of 50 are unstable."""
    chain = Chain(
        lambda z, x: z + jnp.float32(0.6) * (jnp.broadcast_to(x, z.shape) - z),
        np.cos(np.arange(2000.0)).astype(np.float32),
    )
    z0 = np.array([1.0, 2.0], np.float32)
    applied, solution = [
        solve(chain, z0, method=Newton(initial_guess=guess))
        for guess in ("apply", Coarse(every=50))
    ]
    assert solution.result == Result.CONVERGED
    assert solution.stats.iterations <= applied.stats.iterations + 4
    assert_agree(solution.trajectory, trajectory(chain, z0), 1e-5)


def test_coarse_without_inputs_and_with_a_step_of_its_own():
    h = 0.05

    def step(z, x):
        assert x is None
        return z + h * jnp.cos(z)

    def exact(z, xs):
        """Euler's method itself, ten times."""
        assert xs is None
        return jax.lax.fori_loop(0, 10, lambda i, z: step(z, None), z)

    chain = Chain(step, length=40)
    z0 = jnp.array(-1.0)
    solution = solve(chain, z0, method=Newton(initial_guess=Coarse(every=7, step=exact)))
    assert_agree(solution.trajectory, trajectory(chain, z0))
    traced, carry = trace_carry(step, z0, None, 40, 0, "z0", adapt=with_outputs)
    (states,) = jax.jit(lambda: Coarse(every=10, step=exact).trajectory(carry, traced))()
    assert_agree(states[9::10], trajectory(chain, z0)[9::10])  # where coarse steps end it is right
    assert_agree(states[:10], np.linspace(z0, states[9], 11)[1:])  # and straight in between


def test_no_derivative_passes_through_the_guess():
    def value(guess, scale):
        by_array = deeppcr.solve(
            CHAIN, Z0, method=Newton(initial_guess=guess, max_iterations=1, on_failure="return")
        )
        step = Coarse(every=4, step=lambda z, xs: scale * z)
        by_step = deeppcr.solve(
            CHAIN, Z0, method=Newton(initial_guess=step, max_iterations=1, on_failure="return")
        )
        return by_array.value.sum() + by_step.value.sum()

    by_guess, by_scale = jax.jit(jax.grad(value, argnums=(0, 1)))(normal(4, L, 3), jnp.array(1.0))
    assert_agree(by_guess, jnp.zeros((L, 3)))
    assert by_scale == 0
