"""Every solver against the loop: kinds of blocks, directions, lengths, batches, dtypes.

As it solves before the residual judges it, which would repair what is wrong.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.linear import (
    BlockDiagonals,
    CyclicReduction,
    Matrices,
    ParallelCyclicReduction,
    PrefixScan,
    Recurrence,
    Scalars,
    choose_solver,
)
from depth.platforms import compiled_for
from tests.linear.loop import KINDS, compiled, loop, loop_transposed, problem
from tests.problems import pairs, rounding

SOLVERS = [
    Recurrence(),
    ParallelCyclicReduction(),
    CyclicReduction(),
    PrefixScan(),
]
solvers = pytest.mark.parametrize("solver", SOLVERS, ids=repr)
both_directions = pytest.mark.parametrize("reverse", [False, True])


@partial(compiled, static_argnames=("solver", "reverse"))
def solve(solver, blocks, b, reverse=False):
    return solver.solve_unguarded(blocks, b, reverse)


@partial(compiled, static_argnames="solver")
def both(solver, blocks, b):
    return solver.solve_unguarded(blocks, b), solver.solve_unguarded(blocks, b, transposed=True)


close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


CASES = [
    *((solver, "matrices") for solver in SOLVERS),
    *((ParallelCyclicReduction(), kind) for kind in ("ragged", "scalars")),
    *pairs(SOLVERS, ["ragged", "pairs", "diagonals", "scalars"]),
]
cases = pytest.mark.parametrize(("solver", "kind"), CASES, ids=str)


@cases
def test_agrees_with_the_loop(solver, kind):
    blocks, b = problem(kind, 13, (2,), KINDS[kind])
    y, lam = both(solver, blocks, b)
    close(y, loop(blocks, b))
    close(lam, loop_transposed(blocks, b))  # backwards


@pytest.mark.parametrize(
    ("solver", "kind"),
    pairs(SOLVERS, ["ragged", "matrices", "diagonals", "scalars", "matrices", "zeros"]),
    ids=str,
)
def test_short_chains(solver, kind):
    problems = [problem(kind, length, (), KINDS[kind]) for length in range(4)]

    def program(problems):
        return [
            solver.solve_unguarded(blocks, b, True, transposed=length != 2)
            for length, (blocks, b) in enumerate(problems)
        ]

    for length, (y, each) in enumerate(zip(compiled(program)(problems), problems, strict=True)):
        close(y, (loop if length == 2 else loop_transposed)(*each, reverse=True))


@pytest.mark.parametrize(
    ("solver", "length", "width", "reverse"),
    [
        *((solver, 16, 3, reverse) for solver in SOLVERS for reverse in (False, True)),
        *((solver, 6, 9, False) for solver in SOLVERS),
        (CyclicReduction(), 37, 3, True),
    ],
    ids=str,
)
def test_a_power_of_two_wide_blocks_and_an_odd_length(solver, length, width, reverse):
    blocks, b = problem("matrices", length, (), width)
    close(solve(solver, blocks, b, reverse), loop(blocks, b, reverse))


@pytest.mark.parametrize(
    ("solver", "kind", "dtype", "tolerance"),
    [
        (CyclicReduction(), "matrices", jnp.float32, rounding(jnp.float32, 16)),
        *((solver, "matrices", jnp.complex128, 1e-10) for solver in SOLVERS[1:3]),
        # In float32, and rounded once.
        *(
            (solver, kind, jnp.bfloat16, rounding(jnp.bfloat16, 1))
            for solver, kind in pairs(SOLVERS, list(KINDS))
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_other_dtypes(solver, kind, dtype, tolerance):
    blocks, b = problem(kind, 4, (), KINDS[kind])
    # A product, if it is complex, so that its real part is not all that counts.
    by = (1 + 0.5j, 1 - 2j) if dtype == jnp.complex128 else (1, 1)
    blocks, b = (
        jax.tree.map(lambda leaf, x=x: (np.asarray(leaf) * x).astype(dtype), each)
        for each, x in zip((blocks, b), by, strict=True)
    )
    y = solve(solver, blocks, b)
    wide = jnp.complex128 if dtype == jnp.complex128 else jnp.float64
    assert y.dtype == dtype
    close(y.astype(wide), loop(blocks.astype(wide), b.astype(wide)), rtol=tolerance, atol=tolerance)


@solvers
@both_directions
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_travels_backwards(solver, reverse, bad):
    blocks, b = problem("matrices", 16, (), 3)
    A, b = np.asarray(blocks.matrix), np.asarray(b)
    for step in (4, 9, 15):
        index = 15 - step if reverse else step
        A_bad, b_bad = A.copy(), b.copy()
        A_bad[index], b_bad[index] = bad, bad
        for matrix, right in [(A, b_bad), (A_bad, b)]:
            y = np.asarray(solve(solver, Matrices(matrix), right, reverse))[:: -1 if reverse else 1]
            close(y[:step], loop(A, b, reverse)[:: -1 if reverse else 1][:step])
            assert not np.isfinite(y[step:]).all(axis=-1).any()


def spoilt(x, index):
    x = np.array(x)
    x[index] = np.nan
    return x


@cases
def test_the_first_block_is_ignored(solver, kind):
    blocks, b = problem(kind, 13, (2,), KINDS[kind])
    bad = jax.tree.map(lambda leaf: jax.device_put(spoilt(leaf, 0)), blocks)
    for one, other in zip(both(solver, bad, b), both(solver, blocks, b), strict=True):
        np.testing.assert_array_equal(one, other)


@solvers
def test_the_first_block_of_a_reversed_chain_is_ignored(solver):
    blocks, b = problem("matrices", 16, (), 3)
    bad = Matrices(spoilt(blocks.matrix, -1))
    close(solve(solver, bad, b, reverse=True), loop(blocks, b, reverse=True))


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_programs_do_not_grow_with_the_chain(solver):
    def size(length):
        return len(str(jax.make_jaxpr(solver.solve)(*problem("matrices", length, (), 2))))

    levels = 3  # from 64 to 512: logarithmic growth is allowed, 8 times the program is not
    assert size(512) < size(64) * (1 + levels)


def wide_blocks(count, size):
    return BlockDiagonals(
        np.ones((64, count, size, size)), np.arange(count * size).reshape(count, size)
    )


@pytest.mark.parametrize(
    ("blocks", "solver"),
    [
        pytest.param(problem("matrices", 64, (), 4)[0], ParallelCyclicReduction(), id="small"),
        pytest.param(problem("matrices", 64, (), 32)[0], ParallelCyclicReduction(), id="short"),
        pytest.param(problem("matrices", 64, (), 128)[0], CyclicReduction(), id="wide"),
        pytest.param(problem("diagonals", 64, (), 32)[0], ParallelCyclicReduction(), id="diag"),
        pytest.param(Scalars(jnp.ones(64), (), 32), ParallelCyclicReduction(), id="scalar"),
        pytest.param(Scalars(jnp.ones(64), (8,), 8192), CyclicReduction(), id="large"),
        pytest.param(wide_blocks(16, 2), ParallelCyclicReduction(), id="many small"),
        pytest.param(wide_blocks(2, 16), ParallelCyclicReduction(), id="few"),
        pytest.param(wide_blocks(2, 128), CyclicReduction(), id="few wide"),
    ],
)
def test_what_is_chosen_depends_on_how_many_products_a_round_takes(blocks, solver):
    with compiled_for("cpu"):
        assert choose_solver(blocks) == Recurrence()
    with compiled_for("cuda"):
        assert choose_solver(blocks) == solver
        assert choose_solver(jax.tree.map(lambda leaf: leaf[:4], blocks)) == Recurrence()
