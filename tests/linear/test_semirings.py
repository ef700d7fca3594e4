"""`solve_bidiagonal` over the semirings of logarithms and maxima, against loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from deeppcr.linear import BlockDiagonals, Recurrence, solve_bidiagonal
from tests.linear.loop import compiled
from tests.problems import assert_agree

L, W = 5, 3
FAR = -1e3  # the logarithm of a number that is no more than zero where it is added to others
SUMS = {"log": jax.nn.logsumexp, "max": jnp.max}


def problem(batch=(), seed=0):
    """Logarithms, many of them of zero: there is no path to the second entry of the third state."""
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(L, *batch, W, W)), rng.normal(size=(L, *batch, W))
    for x in (A, b):
        x[rng.random(x.shape) < 0.4] = -np.inf
    A[2, ..., 1, :] = b[2, ..., 1] = -np.inf
    return A, b, rng.normal(size=b.shape[1:])


def scan(name, A, b, initial, reverse=False):
    """The loop, with jax's own derivatives."""

    def step(y, inputs):
        A_l, b_l = inputs
        terms = jnp.concatenate([A_l + y[..., None, :], b_l[..., None]], -1)
        y = SUMS[name](terms, axis=-1)
        return y, y

    return lax.scan(step, initial, (A, b), reverse=reverse)[1]


def full(diagonal):
    return np.where(np.eye(W) > 0, diagonal[..., None], -np.inf)


CASES = [
    ("log", "sequential", False, (), False),
    ("log", "prefix_scan", True, (2,), False),
    ("log", "prefix_scan", False, (), True),
    ("max", "sequential", True, (2,), True),
    ("max", "prefix_scan", False, (2,), False),
]


@pytest.mark.parametrize(("name", "solver", "reverse", "batch", "is_diagonal"), CASES)
def test_values(name, solver, reverse, batch, is_diagonal):
    A, b, initial = problem(batch)
    A = A[..., 0] if is_diagonal else A
    options = {"solver": solver, "reverse": reverse, "semiring": name}
    expected = scan(name, full(A) if is_diagonal else A, b, initial, reverse)
    for dtype, tolerance in ((np.float64, 1e-14), (np.float32, 1e-5), (jnp.bfloat16, 0.03)):
        y = solve_bidiagonal(
            *(x.astype(dtype) for x in (A, b)), initial=initial.astype(dtype), **options
        )
        assert y.dtype == dtype
        np.testing.assert_allclose(y.astype(float), expected, tolerance, tolerance)
    first = -1 if reverse else 0
    A[first] = np.nan  # what is not read
    y, options["initial"] = solve_bidiagonal(A, b, **options), jnp.full_like(b[0], -jnp.inf)
    np.testing.assert_array_equal(y[first], b[first])
    A[first] = 0
    np.testing.assert_array_equal(y, solve_bidiagonal(A, b, **options))


def total(solve, A, b, initial):
    y = solve(A, b, initial)
    return jnp.sum(jnp.sin(jnp.where(y > FAR / 2, y, 0)))


@pytest.mark.parametrize(
    ("name", "solver", "reverse", "batch", "is_diagonal"), CASES[:2] + CASES[3:]
)
def test_derivatives_where_terms_are_missing(name, solver, reverse, batch, is_diagonal):
    given = problem(batch)
    given = (given[0][..., 0], *given[1:]) if is_diagonal else given

    def ours(A, b, z):
        return solve_bidiagonal(A, b, initial=z, solver=solver, reverse=reverse, semiring=name)

    def theirs(A, b, z):
        A = jnp.where(jnp.eye(W) > 0, A[..., None], FAR) if is_diagonal else A
        return scan(name, A, b, z, reverse)

    def derivatives(solve, given):
        """The value, its gradients, and (of "log") those of a derivative."""
        gradients = jax.grad(partial(total, solve), (0, 1, 2))
        tangents = tuple(np.cos(np.arange(x.size)).reshape(x.shape) for x in given)
        curvature = jax.grad(lambda *x: jax.jvp(partial(total, solve), x, tangents)[1], (0, 1, 2))
        return total(solve, *given), gradients(*given), curvature(*given) if name == "log" else ()

    finite = [np.maximum(x, FAR) for x in given]
    assert_agree(
        compiled(partial(derivatives, ours))(given), compiled(partial(derivatives, theirs))(finite)
    )


@pytest.mark.parametrize("name", SUMS)
def test_gradients_are_posterior_probabilities_or_the_best_path(name):
    A, b, _ = problem()

    def largest(A, b):
        return SUMS[name](solve_bidiagonal(A, b, semiring=name)[-1])

    moves, starts = jax.grad(largest, (0, 1))(A, b)
    arrivals = moves.sum(-1) + starts
    np.testing.assert_allclose(moves[1:].sum(-2), arrivals[:-1], atol=1e-14)
    np.testing.assert_allclose(arrivals[-1].sum(), 1)
    assert (moves[0] == 0).all()
    assert name == "log" or set(np.unique(moves)) <= {0.0, 1.0}
    to_nowhere = jax.grad(lambda A: solve_bidiagonal(A, b, semiring=name)[2, 1])(A)
    assert (to_nowhere == 0).all()


def test_of_several_best_paths_the_first_is_taken():
    zeros = np.zeros((2, 1, 1)), np.zeros((2, 1))
    gradient = jax.grad(lambda A, b: solve_bidiagonal(A, b, semiring="max").sum(), (0, 1))(*zeros)
    np.testing.assert_array_equal(gradient[0][:, 0, 0], [0.0, 1.0])
    np.testing.assert_array_equal(gradient[1][:, 0], [2.0, 0.0])


def test_short_floats_are_added_in_float32():
    zeros = jnp.zeros((500, 1), jnp.bfloat16)
    y = solve_bidiagonal(zeros, zeros, semiring="log")[-1]
    np.testing.assert_array_equal(y, jnp.log(jnp.float32(500)).astype(jnp.bfloat16))


def test_vmap_and_no_steps():
    A, b, _ = problem((4,))
    solve = partial(solve_bidiagonal, semiring="log")
    np.testing.assert_array_equal(jax.vmap(solve, 1, 1)(A, b), solve(A, b))
    assert solve(A[:0], b[:0]).shape == (0, 4, W)


A, b = np.ones((4, 2, 2)), np.ones((4, 2))
WRONG = [
    (
        (A, b),
        {"semiring": "maximum"},
        ValueError,
        r"semiring is 'maximum', expected one of \['real",
    ),
    ((A, b), {"semiring": None}, ValueError, "semiring is None, expected one of"),
    ((A, b), {"semiring": "log", "solver": "pcr"}, ValueError, "solver is pcr; .* 'prefix_scan'"),
    ((A, b), {"semiring": "log", "solver": Recurrence(unroll=2)}, ValueError, "Recurrence.unroll"),
    ((A + 0j, b + 0j), {"semiring": "max"}, TypeError, "b has dtype complex128; .* a real one"),
    (
        (BlockDiagonals(A[:, None], [[0, 1]]), b),
        {"semiring": "max"},
        TypeError,
        "A is BlockDiagonals; with semiring='max' expected Matrices, Diagonals or an array",
    ),
]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), WRONG)
def test_what_a_semiring_does_not_take_is_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        solve_bidiagonal(*arguments, **options)
