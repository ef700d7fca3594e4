"""`solve_bidiagonal` over the semirings of logarithms and maxima, against a loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from deeppcr import solve_bidiagonal
from deeppcr.linear import BlockDiagonals, Recurrence
from tests.linear.loop import compiled
from tests.problems import assert_agree

L, W = 5, 3
FAR = -1e3  # the logarithm of a number that is no more than zero where it is added to others
SUMS = {"log": jax.nn.logsumexp, "max": jnp.max}
CASES = [  # name, solver, reverse, batch, is_diagonal
    ("log", "sequential", False, (), False),
    ("log", "prefix_scan", True, (2,), False),
    ("max", "sequential", True, (2,), True),
    ("max", "prefix_scan", False, (2,), False),
    ("log", "prefix_scan", False, (), True),
]


def problem(batch=(), is_diagonal=False):
    """Logarithms, many of them of zero: there is no path to the second entry of the third state."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(L, *batch, W, W)), rng.normal(size=(L, *batch, W))
    for x in (A, b):
        x[rng.random(x.shape) < 0.4] = -np.inf
    A[2, ..., 1, :] = b[2, ..., 1] = -np.inf
    return A[..., 0] if is_diagonal else A, b, rng.normal(size=b.shape[1:])


def scan(name, A, b, initial, reverse=False):
    """The loop, with jax's own derivatives, on finite numbers."""
    A = jnp.where(jnp.eye(W) > 0, A[..., None], FAR) if A.ndim == b.ndim else A

    def step(y, inputs):
        A_l, b_l = (jnp.maximum(x, FAR) for x in inputs)
        y = SUMS[name](jnp.concatenate([A_l + y[..., None, :], b_l[..., None]], -1), axis=-1)
        return y, y

    return lax.scan(step, initial, (A, b), reverse=reverse)[1]


@pytest.mark.parametrize(("name", "solver", "reverse", "batch", "is_diagonal"), CASES)
def test_values(name, solver, reverse, batch, is_diagonal):
    A, b, initial = problem(batch, is_diagonal)
    solve = partial(solve_bidiagonal, solver=solver, reverse=reverse, semiring=name)
    types = {np.float64: 1e-14, np.float32: 1e-5, jnp.bfloat16: 0.03}
    first = -1 if reverse else 0
    bad, nothing = A.copy(), A.copy()
    bad[first], nothing[first] = np.nan, 0  # what is not read, without an initial state

    @compiled
    def run():
        given = [[x.astype(dtype) for x in (A, b, initial)] for dtype in types]
        by_zero = solve(nothing, b, initial=jnp.full_like(b[0], -jnp.inf))
        right = scan(name, A, b, initial, reverse)
        return [solve(A, b, initial=z) for A, b, z in given], right, solve(bad, b), by_zero

    found, expected, of_bad, of_nothing = run()
    expected = np.where(expected < FAR / 2, -np.inf, expected)
    for y, (dtype, tolerance) in zip(found, types.items(), strict=True):
        assert y.dtype == dtype
        np.testing.assert_allclose(np.asarray(y, float), expected, tolerance, tolerance)
    np.testing.assert_array_equal(of_bad[first], b[first])
    np.testing.assert_array_equal(of_bad, of_nothing)


@pytest.mark.parametrize(("name", "solver", "reverse", "batch", "is_diagonal"), CASES[:4])
def test_derivatives_where_terms_are_missing(name, solver, reverse, batch, is_diagonal):
    given = problem(batch, is_diagonal)
    tangents = tuple(np.cos(np.arange(x.size)).reshape(x.shape) for x in given)

    def ours(A, b, z):
        return solve_bidiagonal(A, b, initial=z, solver=solver, reverse=reverse, semiring=name)

    def derivatives(solve):
        """The value, its gradients, and (of "log") those of a derivative."""

        def total(*given):
            y = solve(*given)
            return jnp.sum(jnp.sin(jnp.where(y > FAR / 2, y, 0)))

        bend = jax.grad(lambda *x: jax.jvp(total, x, tangents)[1], (0, 1, 2))
        gradients = jax.grad(total, (0, 1, 2))(*given)
        return total(*given), gradients, bend(*given) if name == "log" else ()

    theirs = partial(scan, name, reverse=reverse)
    assert_agree(*(compiled(partial(derivatives, solve))() for solve in (ours, theirs)))


@pytest.mark.parametrize("name", SUMS)
def test_gradients_are_posterior_probabilities_or_the_best_path(name):
    solve = partial(solve_bidiagonal, semiring=name)
    (A, b, _), (many, right, _) = problem(), problem((4,))

    @compiled
    def run():
        by_both = jax.grad(lambda A, b: SUMS[name](solve(A, b)[-1]), (0, 1))(A, b)
        of_no_path = jax.grad(lambda A: solve(A, b)[2, 1])(A)
        return by_both, of_no_path, jax.vmap(solve, 1, 1)(many, right), solve(many, right)

    gradients, of_no_path, mapped, batch = run()
    moves, starts = map(np.asarray, gradients)
    arrivals = moves.sum(-1) + starts
    np.testing.assert_allclose(moves[1:].sum(-2), arrivals[:-1], atol=1e-14)
    np.testing.assert_allclose(arrivals[-1].sum(), 1)
    assert (moves[0] == 0).all()
    assert name == "log" or set(np.unique(moves)) <= {0.0, 1.0}
    assert (of_no_path == 0).all()
    np.testing.assert_array_equal(mapped, batch)
    assert solve(many[:0], right[:0]).shape == (0, 4, W)


def test_the_first_of_several_best_paths_and_short_floats():
    zeros = np.zeros((2, 1, 1)), np.zeros((2, 1))
    gradient = jax.grad(lambda A, b: solve_bidiagonal(A, b, semiring="max").sum(), (0, 1))(*zeros)
    np.testing.assert_array_equal(gradient[0][:, 0, 0], [0.0, 1.0])
    np.testing.assert_array_equal(gradient[1][:, 0], [2.0, 0.0])
    short = jnp.zeros((500, 1), jnp.bfloat16)  # which cannot count to 500
    y = solve_bidiagonal(short, short, semiring="log")[-1]
    np.testing.assert_array_equal(y, jnp.log(jnp.float32(500)).astype(jnp.bfloat16))


A, b = np.ones((4, 2, 2)), np.ones((4, 2))
WRONG = [
    (A, {"semiring": "maximum"}, ValueError, r"semiring is 'maximum', expected one of \['real"),
    (A, {"semiring": None}, ValueError, "semiring is None, expected one of"),
    (A, {"semiring": ["log"]}, ValueError, r"semiring is list .*expected one of"),
    (A, {"semiring": "log", "solver": "pcr"}, ValueError, "solver is pcr; .* 'prefix_scan'"),
    (A, {"semiring": "log", "solver": Recurrence(unroll=2)}, ValueError, "solver is Recurr"),
    (A + 0j, {"semiring": "max"}, TypeError, "b has dtype complex128; .* a real one"),
    (BlockDiagonals(A[:, None], [[0, 1]]), {"semiring": "max"}, TypeError, "A is BlockDiag"),
]


@pytest.mark.parametrize(("A", "options", "error", "message"), WRONG)
def test_what_a_semiring_does_not_take_is_named(A, options, error, message):
    with pytest.raises(error, match=message):
        solve_bidiagonal(A, b.astype(A.dtype), **options)
