"""`solve_bidiagonal`: what it accepts, its derivatives, transformations, and how it refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from deeppcr.linear import CyclicReduction, Diagonals, Matrices, find_solver, solve_bidiagonal, solve_recurrence
from deeppcr.linear.choose import SOLVERS
from tests.linear.loop import compiled, loop, problem

names = pytest.mark.parametrize("name", [name for name in SOLVERS if name != "auto"])  # which is one of them


def scan(A, b, initial, reverse=False):
    """The same as a differentiable loop."""

    def step(y, inputs):
        A_l, b_l = inputs
        y = (A_l @ y if A.ndim > b.ndim else A_l * y) + b_l
        return y, y

    return lax.scan(step, initial, (A, b), reverse=reverse)[1]


def objective(solution):
    return jnp.sum(jnp.sin(solution) ** 2)


@names
@pytest.mark.parametrize("kind", [Matrices, Diagonals])
@pytest.mark.parametrize("reverse", [False, True])
def test_values_with_an_initial_state(name, kind, reverse):
    A, b = problem(kind, 9, (2,), 3)
    initial = b[0] + 1.0
    y = solve_bidiagonal(A, b, initial=initial, solver=name, reverse=reverse)
    np.testing.assert_allclose(y, loop(A, b, reverse, initial), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(solve_bidiagonal(kind(A), b, solver=name), solve_bidiagonal(A, b, solver=name))


def test_a_case_to_check_by_hand():
    A, b = jnp.array([[2.0], [3.0], [4.0]]), jnp.ones((3, 1))
    np.testing.assert_array_equal(solve_bidiagonal(A, b)[:, 0], [1.0, 4.0, 17.0])
    np.testing.assert_array_equal(solve_bidiagonal(A, b, initial=jnp.array([5.0]))[:, 0], [11.0, 34.0, 137.0])


@names
@pytest.mark.parametrize("kind", [Matrices, Diagonals])
@pytest.mark.parametrize("reverse", [False, True])
def test_first_derivatives(name, kind, reverse):
    A, b = problem(kind, 7, (), 3)
    arguments = (A, b, b[0] * 0.5)

    def ours(A, b, initial):
        return objective(solve_bidiagonal(A, b, initial=initial, solver=name, reverse=reverse))

    def theirs(A, b, initial):
        return objective(scan(A, b, initial, reverse))

    tangents = tuple(jnp.cos(argument) for argument in arguments)
    got, expected = (compiled(partial(jax.jvp, f))(arguments, tangents) for f in (ours, theirs))
    np.testing.assert_allclose(got, expected, rtol=1e-10)
    gradients = [compiled(jax.grad(f, (0, 1, 2)))(*arguments) for f in (ours, theirs)]
    for mine, reference in zip(*gradients, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-11)


@names
def test_second_derivatives(name):
    A, b = problem(Matrices, 6, (), 2)

    def curvature(solution):
        def gradient_norm(A, b):
            gradient = jax.grad(lambda A, b: objective(solution(A, b)), (0, 1))(A, b)
            return sum(jnp.sum(part**2) for part in gradient)

        return compiled(jax.grad(gradient_norm, (0, 1)))(A, b)

    ours = curvature(lambda A, b: solve_bidiagonal(A, b, solver=name))
    theirs = curvature(lambda A, b: scan(A, b, jnp.zeros_like(b[0])))
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-8, atol=1e-10)


@names
def test_vmap_over_everything_and_over_the_right_hand_side_alone(name):
    A, b = problem(Matrices, 10, (3,), 2)

    def gradient(A, b):
        return jax.grad(lambda A: objective(solve_bidiagonal(A, b, solver=name)))(A)

    both = compiled(jax.vmap(gradient, in_axes=1, out_axes=1))(A, b)
    np.testing.assert_allclose(both, compiled(gradient)(A, b), rtol=1e-10, atol=1e-12)
    one = compiled(jax.vmap(lambda b: solve_bidiagonal(A[:, 0], b, solver=name), in_axes=1, out_axes=1))(b)
    for example in range(3):
        np.testing.assert_allclose(one[:, example], loop(A[:, 0], b[:, example]), rtol=1e-10)


@names
def test_inside_scan_and_jit(name):
    A, b = problem(Matrices, 8, (), 2)

    @jax.jit
    def thrice(b):
        return lax.scan(lambda b, _: (solve_bidiagonal(A, b, solver=name), None), b, length=3)[0]

    np.testing.assert_allclose(thrice(b), loop(A, loop(A, loop(A, b))), rtol=1e-10)
    np.testing.assert_allclose(
        jax.grad(lambda b: thrice(b).sum())(b),
        jax.jacfwd(thrice)(b).sum((0, 1)),
        rtol=1e-9,
    )


def test_bfloat16_has_gradients_of_its_own_dtype():
    A, b = (x.astype(jnp.bfloat16) for x in problem(Matrices, 12, (), 3))
    gradient = compiled(jax.grad(lambda A: solve_bidiagonal(A, b, solver="pcr").sum()))(A)
    wide = jax.grad(lambda A: scan(A, b.astype(jnp.float64), jnp.zeros(3)).sum())
    expected = compiled(wide)(A.astype(jnp.float64))
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(gradient.astype(jnp.float64), expected, rtol=0.05, atol=0.05)


def test_differentiation_does_not_go_through_the_solver():
    A, b = problem(Matrices, 1024, (), 4)
    lower = jax.jit(jax.grad(lambda A: solve_bidiagonal(A, b, solver="cyclic_reduction").sum())).lower(A)
    # Gradients through cyclic reduction itself would keep and add up copies of the blocks of every level.
    assert lower.compile().memory_analysis().temp_size_in_bytes < 6 * A.nbytes


@pytest.mark.parametrize("name", ["sequential", "cyclic_reduction", "prefix_scan", "chunked"])
def test_the_adjoint_needs_little_memory(name):
    A, b = problem(Matrices, 1024, (), 16)
    compiled = jax.jit(find_solver(name).solve_transposed).lower(Matrices(A), b).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 3 * A.nbytes


@st.composite
def shapes(draw):
    return (
        draw(st.integers(0, 12)),
        tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        draw(st.integers(1, 3)),
    )


@settings(max_examples=20, deadline=None)
@given(
    shape=shapes(),
    kind=st.sampled_from([Matrices, Diagonals]),
    name=st.sampled_from(list(SOLVERS)),
    reverse=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_solution_and_transpose_for_any_shape(shape, kind, name, reverse, seed):
    length, batch, width = shape
    A, b = problem(kind, length, batch, width, seed)
    _, g = problem(kind, length, batch, width, seed + 1)
    solver = find_solver(name)
    y = compiled(lambda A, b: solve_recurrence(kind(A), b, solver, reverse))(A, b)
    np.testing.assert_allclose(y, loop(A, b, reverse), rtol=1e-9, atol=1e-10)
    lam = compiled(lambda A, g: solver.solve_transposed(kind(A), g, reverse))(A, g)
    np.testing.assert_allclose(np.vdot(g, y), np.vdot(lam, b), rtol=1e-8, atol=1e-9)


A, b = jnp.ones((4, 2, 2)), jnp.ones((4, 2))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((A[:3], b), {}, ValueError, r"A is Matrices.*\[3, 2\].*b has shape \[4, 2\]"),
        ((A[:, None], b[:, None, None]), {}, ValueError, r"A is Diagonals.*\[4, 1, 2, 2\].*\[4, 1, 1, 2\]"),
        ((jnp.ones((4, 1, 2, 2)), jnp.ones((4, 3, 2))), {}, ValueError, "must match exactly"),
        ((jnp.ones((4, 2, 3)), b), {}, ValueError, r"A has shape \[4, 2, 3\]"),
        (
            (jnp.ones(4), jnp.ones(4)),
            {},
            ValueError,
            r"b has shape \[4\], expected \[chain, \*batch, state\]",
        ),
        ((Matrices(A[0]), b), {}, ValueError, "fit together"),
        ((A.astype(jnp.float32), b), {}, TypeError, "b has dtype float64 and A has float32"),
        ((A.astype(int), b.astype(int)), {}, TypeError, "A has dtype int64"),
        ((A, b), {"initial": jnp.ones(3)}, ValueError, r"initial has shape \[3\], expected \[2\]"),
        ((A, b), {"initial": jnp.ones(2, jnp.float32)}, TypeError, "initial has dtype float32"),
        ((A, b), {"solver": "magic"}, ValueError, "'magic'; the known names are auto, sequential, pcr"),
        ((A, b), {"solver": 3}, TypeError, "solver is 3"),
        (
            (A, b),
            {"solver": CyclicReduction},
            TypeError,
            "solver is <class.*expected a solver or one of the names",
        ),
    ],
)
def test_what_does_not_fit_is_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        solve_bidiagonal(*arguments, **options)
