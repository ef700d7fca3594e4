"""`Sharded`, a linear recurrence over devices, against the recurrence written as a loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Sharded
from deeppcr.sharding import ChainSharding, solver_on
from tests.linear.loop import KINDS, loop, loop_transposed, problem, scan
from tests.problems import assert_agree, normal, pairs
from tests.sharding.meshes import SIMULATED, lies_along, mesh, put, run, wait

ALL = mesh(chain=SIMULATED)  # the more devices, the more rounds
SHARDED = Sharded(ALL, "chain")
GRID = mesh(data=2, chain=4)
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


def solve(blocks, b, reverse=False, solver=SHARDED, initial=None):
    return deeppcr.solve_bidiagonal(blocks, b, solver=solver, reverse=reverse, initial=initial)


LENGTHS = [24, 13, 5, 1, 0, 16]  # some of which devices cannot share evenly
SOLVERS = [
    SHARDED,
    Sharded(ALL, "chain", "pcr"),
    Sharded(ALL, "chain", "cyclic_reduction"),
    Sharded(ALL, "chain", "prefix_scan"),
    Sharded(GRID, ("chain", "data")),
    Sharded(mesh(chain=3), "chain"),
    Sharded(mesh(chain=1), "chain"),
]
CASES = pairs(KINDS, [(2,), ()], [False, True, True], SOLVERS)


@pytest.mark.parametrize(
    ("kind", "batch", "reverse", "solver", "length"),
    [
        *((*case, length) for case, length in zip(CASES, LENGTHS, strict=False)),
        ("matrices", (), True, Sharded(ALL, "chain", "prefix_scan"), 40),
        ("matrices", (), True, SOLVERS[-2], 13),
    ],
    ids=str,
)
def test_agrees_with_the_loop(kind, batch, reverse, solver, length):
    blocks, b = problem(kind, length, batch, KINDS[kind])
    found = run(
        lambda blocks, b: (
            solver.solve(blocks, b, reverse),
            solver.solve_transposed(blocks, b, reverse),
        ),
        blocks,
        b,
    )
    close(found[0], loop(blocks, b, reverse))
    close(found[1], loop_transposed(blocks, b, reverse))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["matrices", "ragged", "diagonals"])
def test_before_the_residual_judges_and_repairs_it(kind, reverse):
    blocks, b = problem(kind, 16, (2,), KINDS[kind])
    shards = ChainSharding(mesh=ALL, mesh_axis="chain")
    solver = solver_on(shards, SHARDED)

    def on_device(blocks, b):
        y = solver.solve_unguarded(blocks, b, reverse)
        return y, solver.solve_unguarded(blocks, b, reverse, transposed=True)

    ignored = jax.tree.map(lambda leaf: leaf.at[-1 if reverse else 0].set(jnp.nan), blocks)
    y, lam = run(shards.per_shard(on_device, shards.along, shards.along), ignored, b)
    close(y, loop(blocks, b, reverse))
    close(lam, loop_transposed(blocks, b, reverse))


def test_what_is_not_finite_harms_no_earlier_step():
    blocks, b = problem("matrices", 16, (), 2)
    found = run(solve, blocks.matrix.at[9, 0, 0].set(jnp.inf), b.at[12].set(jnp.nan))
    close(found[:9], loop(blocks, b)[:9])
    assert not np.isfinite(found[9:]).all(axis=1).any()


def test_derivatives_of_the_first_and_the_second_order():
    kind, reverse = "ragged", True
    blocks, b = problem(kind, 13, (), KINDS[kind])
    blocks = jax.tree.map(
        lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf)), blocks
    )
    initial, weights = normal(1, KINDS[kind]), normal(2, *b.shape)

    def derivatives(by):
        def loss(blocks, b, initial):
            return (jnp.sin(by(blocks, b, initial)) * weights).sum()

        def slope(*arguments):
            found = jax.grad(loss, argnums=(0, 1, 2))(*arguments)
            return sum((g**2).sum() for g in jax.tree.leaves(found)), found

        return run(jax.grad(slope, argnums=(0, 1, 2), has_aux=True), blocks, b, initial)

    ours = derivatives(
        lambda blocks, b, initial: solve(blocks, b, reverse=reverse, initial=initial)
    )
    assert_agree(ours, derivatives(partial(scan, reverse=reverse)))


@pytest.mark.parametrize(("kind", "call"), [("auto", run), ("explicit", wait)])
def test_arrays_stay_where_they_are(kind, call):
    on = mesh(kind, chain=SIMULATED)
    blocks, b = problem("diagonals", 16, (), 2)
    by = Sharded(on, "chain")
    found = call(
        lambda A, b: solve(A, b, solver=by),
        put(blocks.diagonal, "chain", on=on),
        put(b, "chain", on=on),
    )
    close(found, loop(blocks, b))
    assert lies_along(found, "chain")
    assert {shard.data.shape for shard in found.addressable_shards} == {(2, 2)}


def test_wrong_use():
    with pytest.raises(TypeError, match="mesh is 3, expected a jax"):
        Sharded(3, "chain")
    for axis in ("layers", ("chain", "layers"), (), 0):
        with pytest.raises(ValueError, match="the mesh has the axes 'chain'"):
            Sharded(ALL, axis)
    with pytest.raises(TypeError, match="expected a solver for the shard of one device"):
        Sharded(ALL, "chain", inside=SHARDED)
    with pytest.raises(ValueError, match="pcr"):
        Sharded(ALL, "chain", inside="fast")


def growing(kind="matrices"):
    """Blocks whose products overflow, though no state does: it is zero away from the ends."""
    blocks, b = problem(kind, 24, (2,), KINDS[kind])

    def grown(leaf):
        leaf = 1e130 * np.asarray(leaf)
        leaf[[2, -3]] = 0
        return leaf

    b = np.array(b)
    b[2:-2], b[[0, -1], 0] = 0, 1e-200
    return jax.tree.map(grown, blocks), b


@pytest.mark.parametrize(("kind", "reverse"), [("matrices", False), ("diagonals", True)])
def test_products_that_overflow(kind, reverse):
    blocks, b = growing(kind)
    y, lam = run(
        lambda blocks, b: (
            SHARDED.solve(blocks, b, reverse),
            SHARDED.solve_transposed(blocks, b, reverse),
        ),
        blocks,
        b,
    )
    np.testing.assert_allclose(y, loop(blocks, b, reverse), rtol=1e-10)
    np.testing.assert_allclose(lam, loop_transposed(blocks, b, reverse), rtol=1e-10)
    assert lies_along(y, "chain")
