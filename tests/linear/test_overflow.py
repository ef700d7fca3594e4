"""Products of blocks that overflow where no state does: every solver agrees with the loop."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import deeppcr
from deeppcr import Adjoint
from deeppcr.linear import (
    CyclicReduction,
    Diagonals,
    Matrices,
    ParallelCyclicReduction,
    PrefixScan,
    Recurrence,
    find_solver,
)
from deeppcr.loops import REPAIR
from deeppcr.lower.variants import compiled_for
from tests.linear.loop import KINDS, compiled, loop, loop_transposed, problem
from tests.problems import assert_agree, on_a_cpu, pairs

PARALLEL = [ParallelCyclicReduction(), CyclicReduction(), PrefixScan()]
LENGTH, BATCH = 13, 2  # as in test_solvers.py
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
solvers = pytest.mark.parametrize("solver", PARALLEL, ids=repr)


@partial(compiled, static_argnums=(0, 3))
def solutions(solver, blocks, b, reverse=False):
    """The solution, the transposed one, and the first one without its fallback."""
    return (
        [solver.solve(blocks, b, reverse), solver.solve_transposed(blocks, b, reverse)],
        solver.solve_unguarded(blocks, b, reverse),
    )


def expected(blocks, b, reverse=False):
    return [of(blocks, b, reverse) for of in (loop, loop_transposed)]


def growing(kind):
    """Blocks whose products overflow within three steps, and b that is not zero near the ends only.

    In either direction only the b of the last step counts, and that of the first up to a block of
    zeros.
    """
    blocks, b = problem(kind, LENGTH, (BATCH,), KINDS[kind])
    ends = np.ones(LENGTH)
    ends[[2, LENGTH - 3]] = 0
    blocks = jax.tree.map(lambda leaf: (1e130 * ends * np.asarray(leaf).T).T, blocks)
    b = np.array(b)
    b[2 : LENGTH - 2], b[0, 0], b[-1, 0] = 0, 1e-200, 1e-200
    return blocks, b


@pytest.mark.parametrize(("solver", "reverse"), pairs(PARALLEL, [False, True]), ids=str)
def test_finite_where_the_loop_is(solver, reverse):
    blocks, b = growing("matrices")
    found, unguarded = solutions(solver, blocks, b, reverse)
    assert not np.isfinite(unguarded).all()
    for one, right in zip(found, expected(blocks, b, reverse), strict=True):
        assert np.isfinite(right).all()
        close(one, right, atol=0)


def well_and_ill():
    return problem("matrices", LENGTH, (BATCH,), 2), growing("matrices")


@solvers
def test_a_batch_element_that_overflows_harms_no_other(solver):
    well, ill = well_and_ill()
    mixed = jax.tree.map(lambda well, ill: np.stack([ill[:, 0], well[:, 1]], 1), well, ill)
    close(solutions(solver, *mixed)[0][0], loop(*mixed), atol=0)


def sizes(rng, *shape, zeros=0.05, least=-6):
    """Numbers up to 1e8, log-uniform, and zeros; none is negative, so that nothing cancels."""
    return 10.0 ** rng.uniform(least, 8, shape) * (rng.random(shape) >= zeros)


RANDOM = {
    "matrices": lambda rng, *shape: Matrices(sizes(rng, *shape, 4, 4, zeros=0.75)),
    "diagonals": lambda rng, *shape: Diagonals(sizes(rng, *shape, 4)),
}


@partial(compiled, static_argnums=0)
@partial(jax.vmap, in_axes=(None, 0, 0, 0))
def both(solver, blocks, b, g):
    return (
        solver.solve(blocks, b),
        solver.solve_transposed(blocks, g),
        solver.solve_unguarded(blocks, b),
    )


# -- what is random --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "kind"),
    [
        (ParallelCyclicReduction(), "matrices"),
        (PrefixScan(), "diagonals"),
    ],
    ids=str,
)
def test_blocks_of_all_sizes(solver, kind):
    rng = np.random.default_rng(0)
    many, length = 64, 48
    blocks, b = RANDOM[kind](rng, many, length), sizes(rng, many, length, 4, zeros=0, least=-8)
    b[np.arange(length) < rng.integers(0, length, (many, 1))] = 0  # states are zero until it begins
    arrays = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), (blocks, b, b[:, ::-1]))
    *found, unguarded = both(solver, *arrays)
    *right, _ = both(Recurrence(), *arrays)
    assert (np.isfinite(right[0]) & ~np.isfinite(unguarded)).any()
    for y, y_right in zip(found, right, strict=True):
        np.testing.assert_allclose(y, y_right, rtol=1e-5)


STEPS = 16
GAINS = np.broadcast_to(np.array([1e5, 0.5], np.float32), (STEPS, 2))
INPUTS = np.linspace(0.1, 1.0, STEPS, dtype=np.float32)
START = np.array([0.0, 0.3], np.float32)


def mixed(z, x):
    """Jacobians are full as functions, and diagonal at the states of this chain."""
    gain, shift = x
    return jnp.stack([gain[0] * z[0] * (1 + z[1]), gain[1] * z[1] + shift + z[0] ** 2])


@cache
def derivatives(scan):
    """Gradients of a loss, and the tangents of all states."""

    def states(start, inputs):
        return scan(lambda z, x: 2 * (mixed(z, x),), start, inputs)[1]

    def program(start, inputs):
        def loss(start, inputs):
            return (states(start, inputs)[:, 1] ** 2).sum().astype(jnp.float32)

        tangents = jax.jvp(
            lambda by: states(start, (inputs[0], inputs[1] * by)), *2 * ((np.float32(1),),)
        )
        return jax.value_and_grad(loss, (0, 1))(start, inputs), tangents

    return compiled(program)(START, (GAINS, INPUTS))


ADJOINTS = {
    "pcr": "pcr",
    "in chunks": Adjoint(linear="pcr", memory=1),
    "of blocks that are nearly right": Adjoint(linearize="diagonal", linear="pcr"),
}


# -- derivatives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADJOINTS)
def test_gradients_are_those_of_the_sequential_program(name):
    right = derivatives(lax.scan)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(right))
    scan = partial(deeppcr.scan, method="sequential", adjoint=ADJOINTS[name])
    assert_agree(derivatives(scan), right, 1e-5)


# -- what it costs ---------------------------------------------------------------------------------


@solvers
def test_a_finite_solution_is_left_as_it_is(solver):
    (found, *_), unguarded = solutions(
        solver, *jax.tree.map(np.asarray, problem("matrices", LENGTH, (BATCH,), 2))
    )
    close(found, unguarded)  # two computations, which a compiler may round apart


def test_only_what_multiplies_blocks_is_guarded():
    blocks, b = problem("matrices", LENGTH, (BATCH,), 2)

    def guarded(solve):
        return REPAIR in jax.jit(solve).lower(blocks, b).as_text(debug_info=True)

    assert guarded(ParallelCyclicReduction().solve)
    assert guarded(ParallelCyclicReduction().solve_transposed)
    # For an iteration that checks its result itself.
    assert not guarded(ParallelCyclicReduction().solve_unguarded)
    assert not guarded(Recurrence().solve)
    with on_a_cpu():  # where it is the recurrence
        assert not guarded(find_solver("auto").solve)
    with compiled_for("cuda"):
        assert guarded(find_solver("auto").solve_transposed)
