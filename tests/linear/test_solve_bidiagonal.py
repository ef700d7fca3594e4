"""`solve_bidiagonal`: what it accepts, its derivatives, transformations, and how it refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import solve_bidiagonal
from deeppcr.linear import (
    SOLVERS,
    BlockDiagonals,
    CyclicReduction,
    Matrices,
    Scalars,
    find_solver,
    solve_recurrence,
)
from tests.linear.loop import KINDS, compiled, loop, loop_transposed, problem, scan
from tests.problems import assert_agree, on_a_cpu, pairs

# Every kind but matrices, which are tried in both directions.
OTHERS = [(kind, index % 2 == 0) for index, kind in enumerate(list(KINDS)[1:])]


def objective(solution):
    return jnp.sum(jnp.sin(solution) ** 2)


def test_a_case_to_check_by_hand():
    A, b = jnp.array([[2.0], [3.0], [4.0]]), jnp.ones((3, 1))
    np.testing.assert_array_equal(solve_bidiagonal(A, b)[:, 0], [1.0, 4.0, 17.0])
    np.testing.assert_array_equal(
        solve_bidiagonal(A, b, initial=jnp.array([5.0]))[:, 0], [11.0, 34.0, 137.0]
    )


def values_and_gradients(solution, kind):
    """The solution, and gradients to the blocks, b and the initial state."""
    blocks, b = problem(kind, 4, (2,), KINDS[kind])

    def program(*arguments):
        y = solution(*arguments)
        return objective(y), y

    (_, y), gradients = compiled(jax.value_and_grad(program, (0, 1, 2), has_aux=True))(
        blocks, b, 0.5 * np.asarray(b[0])
    )
    return y, gradients


@pytest.mark.parametrize(
    ("name", "kind", "reverse"),
    [
        ("sequential", "matrices", False),
        ("prefix_scan", "matrices", True),
        *(("pcr", *other) for other in OTHERS),
    ],
)
def test_values_and_gradients_with_an_initial_state(name, kind, reverse):
    y, ours = values_and_gradients(
        lambda A, b, z: solve_bidiagonal(A, b, initial=z, solver=name, reverse=reverse), kind
    )
    blocks, b = problem(kind, 4, (2,), KINDS[kind])
    np.testing.assert_allclose(
        y, loop(blocks, b, reverse, 0.5 * np.asarray(b[0])), rtol=1e-10, atol=1e-12
    )
    theirs = values_and_gradients(partial(scan, reverse=reverse), kind)[1]
    assert_agree(ours, theirs)


@pytest.mark.parametrize(("kind", "reverse"), [("matrices", False), ("ragged", True)])
def test_forward_derivatives(kind, reverse):
    blocks, b = problem(kind, 4, (), KINDS[kind])
    arguments = (blocks, b, 0.5 * np.asarray(b[0]))
    tangents = jax.tree.map(np.cos, arguments)
    programs = (
        lambda A, b, initial: solve_bidiagonal(A, b, initial=initial, reverse=reverse),
        partial(scan, reverse=reverse),
    )
    ours, theirs = (
        compiled(partial(jax.jvp, program))(arguments, tangents)[1] for program in programs
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def curvature(solution, kind):
    def gradient_norm(A, b):
        gradient = jax.grad(lambda A, b: objective(solution(A, b)), (0, 1))(A, b)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))

    return compiled(jax.grad(gradient_norm, (0, 1)))(*problem(kind, 4, (), 2))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("pcr", "ragged"), ("prefix_scan", "matrices")],
)
def test_second_derivatives(name, kind):
    ours = curvature(lambda A, b: solve_bidiagonal(A, b, solver=name), kind)
    theirs = curvature(lambda A, b: scan(A, b, jnp.zeros_like(b[0])), kind)
    assert_agree(ours, theirs)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("pcr", "matrices"), ("cyclic_reduction", "ragged"), ("prefix_scan", "scalars")],
)
def test_vmap_of_every_layout(name, kind):
    problems = [problem(kind, 3, (), KINDS[kind], seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *problems)
    y = compiled(jax.vmap(partial(solve_bidiagonal, solver=name)))(*stacked)
    np.testing.assert_allclose(y, [loop(*one) for one in problems], rtol=1e-10, atol=1e-12)


def matrices(length, batch, width):
    blocks, b = problem("matrices", length, batch, width)
    return blocks.matrix, b


@pytest.mark.parametrize("name", ["cyclic_reduction", "prefix_scan"])
def test_the_adjoint_needs_little_memory(name):
    A, b = matrices(64, (), 16)

    @jax.jit
    def program(A, b):  # a gradient's blocks are not given, so they count
        return find_solver(name).solve_transposed(Matrices(jnp.tanh(A)), b)

    with on_a_cpu():  # other compilers keep other copies
        compiled = program.lower(A, b).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4 * (A.nbytes + b.nbytes)


SHAPES = pairs(KINDS, SOLVERS, [0, 1, 12, 5, 2, 7], [(), (3,), (1, 2)], [False, True, True, False])


@pytest.mark.parametrize(("kind", "name", "length", "batch", "reverse"), SHAPES)
def test_solution_and_transpose_for_any_shape(kind, name, length, batch, reverse):
    blocks, b = problem(kind, length, batch, 2 if kind == "pairs" else 1 + length % 3)
    solver = find_solver(name)

    def both(blocks, b):
        return (
            solve_recurrence(blocks, b, solver, reverse),
            solver.solve_transposed(blocks, b, reverse),
        )

    y, lam = compiled(both)(blocks, b)
    np.testing.assert_allclose(y, loop(blocks, b, reverse), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(lam, loop_transposed(blocks, b, reverse), rtol=1e-9, atol=1e-10)


A, b = np.ones((4, 2, 2)), np.ones((4, 2))
WRONG = [
    ((A[:3], b), {}, ValueError, r"A is Matrices.*\[3, 2\].*b has shape \[4, 2\]"),
    ((A[:, None], b[:, None, None]), {}, ValueError, r"A is Diagonals.*\[4, 1, 2, 2\].*expected b"),
    ((np.ones((4, 2, 3)), b), {}, ValueError, r"A has shape \[4, 2, 3\]"),
    ((np.ones(4), np.ones(4)), {}, ValueError, r"b has shape \[4\], expected \[chain, \*batch, st"),
    ((BlockDiagonals(A[:, None], [[0], [1]]), b), {}, ValueError, r"A.matrix.*ends in \[2, 1, 1\]"),
    ((Scalars(A[:, 0, 0], (), 3), b), {}, ValueError, r"A is Scalars for vectors \[4, 3\]"),
    ((A.astype(np.float32), b), {}, TypeError, "b has dtype float64 and A has float32"),
    ((A.astype(int), b.astype(int)), {}, TypeError, "A has dtype int64"),
    ((A, b), {"initial": np.ones(3)}, ValueError, r"initial has shape \[3\], expected \[2\]"),
    ((A, b), {"initial": np.ones(2, np.float32)}, TypeError, "initial has dtype float32"),
    ((A, b), {"solver": "magic"}, ValueError, "'magic', expected a solver or one of the names"),
    (
        (A, b),
        {"solver": CyclicReduction},
        TypeError,
        "solver is the class Cyclic.*expected a solver",
    ),
]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), WRONG)
def test_what_does_not_fit_is_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        solve_bidiagonal(*arguments, **options)
