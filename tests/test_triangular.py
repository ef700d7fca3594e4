"""`deeppcr.triangular`: the loop that takes one entry of each evaluation is the oracle."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Result, triangular
from tests.problems import assert_agree, normal

L = 7
W, B = normal(0, L, L), normal(1, L, 3)
ZEROS = {"r": jnp.zeros((L, 3)), "d": jnp.zeros(L, int)}


def step(w, b, y):
    """Real entries of three numbers, and discrete ones, which read each other."""
    before = jnp.pad(y["d"][:-1], (1, 0)).astype(b.dtype)
    r = jnp.tanh(jnp.tril(w, -1) @ y["r"] + b) + 0.1 * before[:, None]
    d = jnp.cumsum(y["r"][:-1].sum(1) > 0)
    return {"r": r, "d": jnp.pad(d, (1, 0)).astype(int)}


def loop(f, y):
    for index in range(L):
        new = f(y)
        y = jax.tree.map(lambda old, x, index=index: old.at[index].set(x[index]), y, new)
    return y


@jax.jit
def sequential(w, b):
    return loop(partial(step, w, b), ZEROS)


@partial(jax.jit, static_argnames=("window", "rtol"))
def parallel(w, b, guess=ZEROS, window=None, rtol=None):
    return triangular(partial(step, w, b), guess, window=window, rtol=rtol)


GUESSES = [  # changes of the answer, the window, iterations
    (lambda x: jnp.zeros_like(x), None, L),
    (lambda x: jnp.full_like(x, 3), 2, L),
    (lambda x: jnp.zeros_like(x), 1, L),
    (lambda x: x, None, 1),
    (lambda x: x.at[4].set(9), None, L - 4),
    (lambda x: x.at[0].set(9), 1, 2),
]


@pytest.mark.parametrize(("change", "window", "iterations"), GUESSES)
def test_any_guess_leads_to_the_answer_of_the_loop(change, window, iterations):
    expected = sequential(W, B)
    solution = parallel(W, B, jax.tree.map(change, expected), window)
    assert_agree(solution.value, expected, 1e-14)
    assert (int(solution.iterations), int(solution.prefix)) == (iterations, L)
    assert int(solution.result) == Result.CONVERGED


def test_the_tolerance_of_real_entries():
    exact, loose = (int(parallel(1e-3 * W, B, rtol=rtol).iterations) for rtol in (None, 1e-2))
    assert loose < exact < L

    def f(y):  # amplifies differences
        return jnp.pad(20 * y[:-1] - 19, (1, 0), constant_values=1)

    guess = jnp.array([1, 1.02, 1.4, 9, 161, 0, 0])  # the second one is as good as asked for
    solution = jax.jit(partial(triangular, f, rtol=0.03))(guess)
    assert solution.converged
    np.testing.assert_allclose(f(solution.value), solution.value, rtol=0.03)


def derivatives(solve):
    def loss(w, b):
        return jnp.sum(jnp.sin(solve(w, b)["r"]) * jnp.arange(1.0, 4)[None])

    gradient = jax.grad(loss, (0, 1))
    bend = jax.grad(lambda w, b: sum(jnp.sum(jnp.cos(x)) for x in gradient(w, b)), (0, 1))
    tangent = jax.jvp(loss, (W, B), (jnp.cos(W), jnp.sin(B)))[1]
    each = jax.vmap(gradient, (None, 0))(W, jnp.stack([B, 2 * B]))
    return tangent, gradient(W, B), bend(W, B), each


def test_derivatives_of_real_entries_and_vmap():
    ours = jax.jit(lambda: derivatives(lambda w, b: parallel(w, b).value))()
    assert_agree(ours, jax.jit(lambda: derivatives(sequential))())
    guesses = jax.tree.map(lambda x, y: jnp.stack([x, y]), ZEROS, sequential(W, B))
    f = partial(step, W, B)
    solution = jax.jit(jax.vmap(partial(triangular, f)))(guesses)  # each ends on its own
    np.testing.assert_array_equal(solution.iterations, [L, 1])
    np.testing.assert_array_equal(solution.value["d"][0], solution.value["d"][1])


INDEX = jnp.arange(L)
NOT_TRIANGULAR = [
    (lambda y: y + 1, 0),  # on itself
    (lambda y: jnp.roll(y, 1) + 1, 0),  # on the last
    (lambda y: jnp.where(INDEX == 4, y[6] + 1, jnp.pad(jnp.cumsum(y)[:-1], (1, 0))), 4),
]


@pytest.mark.parametrize(("f", "first"), NOT_TRIANGULAR)
def test_the_entry_is_named_where_a_map_is_not_triangular(f, first):
    with pytest.raises(ValueError, match=f"step is not triangular: entry {first} of what"):
        triangular(f, jnp.ones(L, int))
    inside = jax.jit(partial(triangular, f))(jnp.ones(L, int))
    assert (int(inside.prefix), int(inside.result)) == (first, Result.NOT_CONVERGED)
    assert not inside.converged


def test_entries_that_are_not_finite():
    def f(y):
        y = jnp.pad(y[:-1], (1, 0), constant_values=jnp.nan)
        return jnp.cumsum(y).at[0].set(1.0)

    solution = triangular(f, jnp.zeros(L))
    assert int(solution.result) == Result.NOT_FINITE
    np.testing.assert_array_equal(solution.value, [1.0, *[np.nan] * (L - 1)])
    assert triangular(f, jnp.zeros(0)).value.shape == (0,)
    with pytest.raises(ValueError, match=r"entry 0 .*NaN times zero is NaN"):
        triangular(lambda y: (jnp.ones(L) + 0 * y[-1]).at[-1].set(jnp.inf), jnp.zeros(L))


WRONG = [
    ({"step": lambda y: y[:, None]}, TypeError, r"step returns .*\[7, 1\], expected a pytree as"),
    ({"step": lambda y: y > 0}, TypeError, r"step returns .*, expected a pytree as the guess: flo"),
    ({"guess": jnp.ones(())}, ValueError, r"guess has leaves of the shapes \[\(\)\], expected"),
    (
        {"guess": [jnp.ones(2), jnp.ones(3)]},
        ValueError,
        r"\[\(2,\), \(3,\)\], expected the entries",
    ),
    ({"window": 0}, ValueError, "window is 0, expected None or an integer >= 1 .the number of e"),
    ({"rtol": -1.0}, ValueError, "rtol is -1.0, expected a number >= 0, or None"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_what_does_not_fit_is_named(options, error, message):
    with pytest.raises(error, match=message):
        triangular(**{"step": lambda y: y, "guess": jnp.ones(L)} | options)
