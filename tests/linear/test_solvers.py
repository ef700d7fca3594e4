"""Every solver against the loop: kinds of blocks, directions, lengths, batches, dtypes."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.linear import (
    BlockDiagonals,
    Chunked,
    CyclicReduction,
    Matrices,
    ParallelCyclicReduction,
    PrefixScan,
    Recurrence,
    Scalars,
    choose_solver,
)
from deeppcr.linear.chunked import default_chunks
from deeppcr.linear.solver import working_dtype
from tests.linear.loop import KINDS, compiled, full, loop, loop_transposed, problem

SOLVERS = [
    Recurrence(),
    ParallelCyclicReduction(),
    CyclicReduction(),
    PrefixScan(),
    Chunked(),
    Chunked(5, across=CyclicReduction()),
]
solvers = pytest.mark.parametrize("solver", SOLVERS, ids=repr)
kinds = pytest.mark.parametrize("kind", KINDS)
both_directions = pytest.mark.parametrize("reverse", [False, True])


@partial(compiled, static_argnames=("solver", "reverse"))
def solve(solver, blocks, b, reverse=False):
    return solver.solve(blocks, b, reverse)


@partial(compiled, static_argnames=("solver", "reverse"))
def solve_transposed(solver, blocks, g, reverse=False):
    return solver.solve_transposed(blocks, g, reverse)


close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


@solvers
@kinds
def test_agrees_with_the_loop(solver, kind):
    blocks, b = problem(kind, 13, (2,), KINDS[kind])
    close(solve(solver, blocks, b), loop(blocks, b))
    close(solve_transposed(solver, blocks, b), loop_transposed(blocks, b))  # backwards


@solvers
@kinds
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_short_chains(solver, kind, length):
    blocks, b = problem(kind, length, (), KINDS[kind])
    if length == 2:
        close(solve(solver, blocks, b, reverse=True), loop(blocks, b, reverse=True))
    else:
        close(
            solve_transposed(solver, blocks, b, reverse=True),
            loop_transposed(blocks, b, reverse=True),
        )


@solvers
@pytest.mark.parametrize(("length", "reverse"), [(16, False), (16, True), (37, True)])
def test_a_power_of_two_and_a_shorter_last_chunk(solver, length, reverse):
    blocks, b = problem("matrices", length, (), 3)
    close(solve(solver, blocks, b, reverse), loop(blocks, b, reverse))


@solvers
@pytest.mark.parametrize(
    ("kind", "batch", "width"),
    [
        ("matrices", (1,), 1),
        ("matrices", (), 9),
        ("matrices", (2, 3), 2),
        ("ragged", (2, 3), 2),
        ("scalars", (2, 3), 2),
    ],
    ids=str,
)
def test_batches_and_widths(solver, kind, batch, width):
    blocks, b = problem(kind, 6, batch, width)
    close(solve(solver, blocks, b), loop(blocks, b))


@solvers
@pytest.mark.parametrize(
    "groups", [np.arange(18).reshape(9, 2).T, [[0]]], ids=["wide", "one entry"]
)
def test_blocks_on_the_diagonal_of_any_width(solver, groups):
    count, size = np.shape(groups)
    rng = np.random.default_rng(0)
    blocks = BlockDiagonals(
        jnp.asarray(rng.normal(size=(6, count, size, size)) / (2 * np.sqrt(size))), groups
    )
    b = jnp.asarray(rng.normal(size=(6, count * size)))
    close(solve(solver, blocks, b), loop(blocks, b))


@solvers
@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [
        ("matrices", jnp.float32, 1e-5),
        ("matrices", jnp.complex128, 1e-10),
        *((kind, jnp.bfloat16, 1e-2) for kind in KINDS),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_other_dtypes(solver, kind, dtype, tolerance):
    blocks, b = problem(kind, 4, (), KINDS[kind])
    blocks, b = blocks.astype(dtype), b.astype(dtype)
    if dtype == jnp.complex128:
        blocks, b = Matrices(blocks.matrix * (1 + 0.5j)), b * (1 - 2j)
    y = solve(solver, blocks, b)
    wide = jnp.complex128 if dtype == jnp.complex128 else jnp.float64
    assert y.dtype == dtype
    close(y.astype(wide), loop(blocks.astype(wide), b.astype(wide)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=lambda dtype: dtype.__name__)
def test_half_precision_is_computed_in_float32(dtype):
    assert working_dtype(dtype) == jnp.float32
    assert working_dtype(jnp.float64) == jnp.float64


@solvers
@both_directions
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_travels_backwards(solver, reverse, bad):
    blocks, b = problem("matrices", 16, (), 3)
    A = blocks.matrix
    for step in (4, 9, 15):
        index = 15 - step if reverse else step
        for A_bad, b_bad in [(A, b.at[index].set(bad)), (A.at[index].set(bad), b)]:
            y = np.asarray(solve(solver, Matrices(A_bad), b_bad, reverse))[:: -1 if reverse else 1]
            close(y[:step], loop(A, b, reverse)[:: -1 if reverse else 1][:step])
            assert not np.isfinite(y[step:]).all(axis=-1).any()


@solvers
@kinds
def test_the_first_block_is_ignored(solver, kind):
    blocks, b = problem(kind, 13, (2,), KINDS[kind])
    bad = jax.tree.map(lambda leaf: leaf.at[0].set(np.nan), blocks)
    np.testing.assert_array_equal(solve(solver, bad, b), solve(solver, blocks, b))
    np.testing.assert_array_equal(
        solve_transposed(solver, bad, b), solve_transposed(solver, blocks, b)
    )


@solvers
def test_the_last_block_of_a_reversed_chain_is_ignored(solver):
    blocks, b = problem("matrices", 16, (), 3)
    bad = Matrices(blocks.matrix.at[-1].set(np.nan))
    np.testing.assert_array_equal(
        solve(solver, bad, b, reverse=True), solve(solver, blocks, b, reverse=True)
    )


@solvers
def test_without_blocks_nothing_is_carried_along(solver):
    blocks, b = problem("zeros", 13, (2,), 4)
    b = b.at[3].set(np.nan)
    np.testing.assert_array_equal(solve(solver, blocks, b), b)
    np.testing.assert_array_equal(solve_transposed(solver, blocks, b), b)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("kind", ["matrices", "ragged"])
def test_programs_do_not_grow_with_the_chain(solver, kind):
    def size(length):
        return len(str(jax.make_jaxpr(partial(solver.solve))(*problem(kind, length, (), 2))))

    levels = 4  # from 64 to 1024: logarithmic growth is allowed, 16 times the program is not
    assert size(1024) < size(64) * (1 + levels)


def test_solvers_are_hashable_values():
    for one, other in itertools.combinations(SOLVERS, 2):
        assert one != other
        assert len({one, other, one}) == 2


def test_a_chunk_has_at_least_one_step():
    with pytest.raises(ValueError, match="size is 0"):
        Chunked(0)


def wide_blocks(count, size):
    return BlockDiagonals(
        jnp.ones((64, count, size, size)), np.arange(count * size).reshape(count, size)
    )


@pytest.mark.parametrize(
    ("blocks", "solver", "chunks"),
    [
        (problem("matrices", 64, (), 4)[0], ParallelCyclicReduction(), 16),
        (problem("matrices", 64, (), 32)[0], ParallelCyclicReduction(), 4),
        (problem("matrices", 64, (), 128)[0], CyclicReduction(), 4),
        (problem("diagonals", 64, (), 32)[0], ParallelCyclicReduction(), 16),
        (Scalars(jnp.ones(64), (), 32), ParallelCyclicReduction(), 16),
        (wide_blocks(16, 2), ParallelCyclicReduction(), 16),
        (wide_blocks(2, 16), ParallelCyclicReduction(), 32),
        (wide_blocks(2, 128), CyclicReduction(), 4),
    ],
    ids=[
        "small",
        "wide and short",
        "wide",
        "diagonal",
        "scalar",
        "many small blocks",
        "few blocks",
        "few wide blocks",
    ],
)
def test_what_is_chosen_depends_on_how_many_products_a_round_takes(blocks, solver, chunks):
    assert choose_solver(blocks, "cpu") == Recurrence()
    assert choose_solver(blocks, "gpu") == solver
    assert default_chunks(blocks) == chunks
    assert choose_solver(jax.tree.map(lambda leaf: leaf[:4], blocks), "gpu") == Recurrence()


def test_the_oracle_knows_the_full_matrices():
    blocks, b = problem("ragged", 3, (), 4)
    A = full(blocks)
    assert [(np.abs(A).min(0) > 0)[i].sum() for i in np.ravel(blocks.groups.rows) if i >= 0] == [
        2,
        2,
        1,
        1,
    ]
    close(loop(A, b), loop(blocks, b))
