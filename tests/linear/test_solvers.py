"""Every solver against the recurrence written as a loop: blocks, directions, lengths, batches, dtypes."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.linear import (
    Chunked,
    CyclicReduction,
    Diagonals,
    Matrices,
    ParallelCyclicReduction,
    PrefixScan,
    Recurrence,
)
from tests.linear.loop import compiled, loop, problem

SOLVERS = [
    Recurrence(),
    ParallelCyclicReduction(),
    CyclicReduction(),
    PrefixScan(),
    Chunked(),
    Chunked(5, across=CyclicReduction()),
]
LENGTHS = (0, 1, 2, 3, 7, 16, 37)
solvers = pytest.mark.parametrize("solver", SOLVERS, ids=repr)
kinds = pytest.mark.parametrize("kind", [Matrices, Diagonals])


@partial(compiled, static_argnames=("solver", "reverse"))
def solve(solver, blocks, b, reverse=False):
    return solver.solve(blocks, b, reverse)


@partial(compiled, static_argnames=("solver", "reverse"))
def solve_transposed(solver, blocks, g, reverse=False):
    return solver.solve_transposed(blocks, g, reverse)


@solvers
@kinds
@pytest.mark.parametrize("reverse", [False, True])
def test_agrees_with_the_loop_at_every_length(solver, kind, reverse):
    for length in LENGTHS:
        A, b = problem(kind, length, (), 3)
        np.testing.assert_allclose(solve(solver, kind(A), b, reverse), loop(A, b, reverse), rtol=1e-10, atol=1e-10)


@solvers
@pytest.mark.parametrize("batch", [(1,), (2, 3)], ids=str)
@pytest.mark.parametrize("width", [1, 4, 9])
def test_agrees_with_the_loop_for_batches_and_widths(solver, batch, width):
    A, b = problem(Matrices, 11, batch, width)
    np.testing.assert_allclose(solve(solver, Matrices(A), b), loop(A, b), rtol=1e-10, atol=1e-10)


@solvers
@kinds
@pytest.mark.parametrize("reverse", [False, True])
def test_transposed_solves_the_transposed_system(solver, kind, reverse):
    A, b = problem(kind, 13, (2,), 3)
    _, g = problem(kind, 13, (2,), 3, seed=1)
    y, lam = loop(A, b, reverse), solve_transposed(solver, kind(A), g, reverse)
    np.testing.assert_allclose(np.vdot(g, y), np.vdot(lam, b), rtol=1e-10)


@solvers
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-2), (jnp.float16, 2e-3), (jnp.complex128, 1e-10)],
)
def test_other_dtypes(solver, dtype, tolerance):
    A, b = problem(Matrices, 21, (), 4)
    if dtype == jnp.complex128:
        A, b = np.asarray(A) * (1 + 0.5j), np.asarray(b) * (1 - 2j)
    A, b = jnp.asarray(A).astype(dtype), jnp.asarray(b).astype(dtype)
    y = solve(solver, Matrices(A), b)
    wide = jnp.complex128 if dtype == jnp.complex128 else jnp.float64
    expected = loop(np.asarray(A.astype(wide)), np.asarray(b.astype(wide)))
    assert y.dtype == dtype
    np.testing.assert_allclose(np.asarray(y.astype(wide)), expected, rtol=tolerance, atol=tolerance)


@solvers
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_travels_backwards(solver, reverse, bad):
    A, b = problem(Matrices, 16, (), 3)
    for step in (4, 9, 15):
        place = 15 - step if reverse else step
        for A_bad, b_bad in [(A, b.at[place].set(bad)), (A.at[place].set(bad), b)]:
            y = np.asarray(solve(solver, Matrices(A_bad), b_bad, reverse))[:: -1 if reverse else 1]
            np.testing.assert_allclose(y[:step], loop(A, b, reverse)[:: -1 if reverse else 1][:step], rtol=1e-10)
            assert not np.isfinite(y[step:]).all(axis=-1).any()


@solvers
@kinds
@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_block_is_ignored(solver, kind, reverse):
    for length in (2, 16):
        A, b = problem(kind, length, (), 3)
        first = length - 1 if reverse else 0
        A_bad = A.at[first].set(np.nan)
        np.testing.assert_allclose(solve(solver, kind(A_bad), b, reverse), loop(A, b, reverse), rtol=1e-10, atol=1e-12)
        _, g = problem(kind, length, (), 3, seed=1)
        np.testing.assert_array_equal(
            solve_transposed(solver, kind(A_bad), g, reverse), solve_transposed(solver, kind(A), g, reverse)
        )


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_programs_do_not_grow_with_the_chain(solver):
    def size(length):
        A, b = problem(Matrices, length, (), 2)
        return len(str(jax.make_jaxpr(partial(solver.solve))(Matrices(A), b)))

    levels = 4  # from 64 to 1024: logarithmic growth is allowed, 16 times the program is not
    assert size(1024) < size(64) * (1 + levels)


def test_solvers_are_hashable_values():
    for one, other in itertools.combinations(SOLVERS, 2):
        assert one != other
        assert len({one, other, one}) == 2


def test_a_block_kind_is_a_pytree_with_shapes():
    A, _ = problem(Matrices, 5, (2, 4), 3)
    blocks = jax.tree.map(lambda leaf: leaf, Matrices(A))
    assert (blocks.length, blocks.batch_shape, blocks.width, blocks.dtype) == (5, (2, 4), 3, jnp.float64)
    assert blocks.vector_shape == (5, 2, 4, 3)


def test_a_chunk_has_at_least_one_step():
    with pytest.raises(ValueError, match="size is 0"):
        Chunked(0)
