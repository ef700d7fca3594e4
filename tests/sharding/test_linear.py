"""`Sharded`, a linear recurrence over devices, against the recurrence written as a loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Sharded
from tests.linear.loop import KINDS, loop, loop_transposed, problem, scan
from tests.problems import assert_agree, normal
from tests.sharding.meshes import SIMULATED, lies_along, mesh, put, run, wait

ALL = mesh(chain=SIMULATED)  # the more devices, the more rounds
SHARDED = Sharded(ALL, "chain")
GRID = mesh(data=2, chain=4)
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


def solve(blocks, b, reverse=False, solver=SHARDED, initial=None):
    return deeppcr.solve_bidiagonal(blocks, b, solver=solver, reverse=reverse, initial=initial)


def assert_solves(kind, length, batch=(), width=None, reverse=False, solver=SHARDED):
    blocks, b = problem(kind, length, batch, width or KINDS[kind])
    close(run(partial(solve, reverse=reverse, solver=solver), blocks, b), loop(blocks, b, reverse))


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_loop(kind):
    assert_solves(kind, 24, (2,), reverse=list(KINDS).index(kind) % 2 == 1)


UNEVEN = [
    (13, "ragged", False),
    (5, "diagonals", True),
    (1, "matrices", False),
]


@pytest.mark.parametrize(("length", "kind", "reverse"), [*UNEVEN, (0, "scalars", True)])
def test_lengths_that_devices_cannot_share_evenly(length, kind, reverse):
    assert_solves(kind, length, reverse=reverse)


@pytest.mark.parametrize("inside", ["pcr", "cyclic_reduction", deeppcr.Chunked(3)], ids=str)
def test_any_solver_inside(inside):
    assert_solves("matrices", 40, reverse=True, solver=Sharded(ALL, "chain", inside=inside))


@pytest.mark.parametrize(
    "solver",
    [
        Sharded(GRID, ("chain", "data")),
        Sharded(mesh(chain=3), "chain"),
        Sharded(mesh(chain=1), "chain"),
    ],
    ids=lambda solver: f"{solver.axis} of {dict(solver.mesh.shape)}",
)
def test_other_meshes(solver):
    assert_solves("matrices", 13, reverse=True, solver=solver)


@pytest.mark.parametrize(("reverse", "inside"), [(False, "auto"), (True, "auto"), (False, "pcr")])
def test_the_first_block_is_never_looked_at(reverse, inside):
    blocks, b = problem("matrices", 16, (), 2)
    first = -1 if reverse else 0
    spoilt = blocks.matrix.at[first].set(jnp.nan)
    solver = Sharded(ALL, "chain", inside=inside)
    close(
        run(partial(solve, reverse=reverse, solver=solver), spoilt, b),
        loop(blocks.matrix.at[first].set(0), b, reverse),
    )


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


def test_vmap():
    blocks, b = problem("matrices", 16, (3,), 2)
    found = run(jax.vmap(solve, in_axes=(1, 1), out_axes=1), blocks.matrix, b)
    close(found, loop(blocks, b))
    many = normal(0, 3, 16, 2)
    found = run(jax.vmap(lambda b: solve(blocks.matrix[:, 0], b)), many)
    close(found, np.stack([loop(blocks.matrix[:, 0], one) for one in many]))


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


def test_a_batch_over_another_axis():
    blocks, b = problem("matrices", 16, (4,), 2)
    A, b_on = put(blocks.matrix, "chain", "data", on=GRID), put(b, "chain", "data", on=GRID)
    found = run(partial(solve, solver=Sharded(GRID, "chain")), A, b_on)
    close(found, loop(blocks, b))
    assert lies_along(found, "chain", "data")


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
    blocks = jax.tree.map(lambda leaf: (leaf * 1e130).at[jnp.array([2, -3])].set(0), blocks)
    return blocks, b.at[2:-2].set(0).at[0, 0].set(1e-200).at[-1, 0].set(1e-200)


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


def test_products_that_overflow_in_one_example():
    (well, b), (ill, b_ill) = problem("matrices", 24, (2,), 2), growing()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), (well, b), (ill, b_ill))
    found = run(jax.vmap(SHARDED.solve), *stacked)
    close(found[0], loop(well, b))
    np.testing.assert_allclose(found[1], loop(ill, b_ill), rtol=1e-10)


def test_derivatives_of_a_chain_whose_products_overflow():
    def step(z, x):
        return jnp.stack([1e30 * z[0] * (1 + z[1]), 0.5 * z[1] + x + z[0] ** 2])

    def gradient(**options):
        def loss(z, xs):
            return (
                deeppcr.scan(lambda z, x: 2 * (step(z, x),), z, xs, **options)[1][:, 1] ** 2
            ).sum()

        return run(
            jax.grad(loss, (0, 1)),
            jnp.array([0.0, 0.3]),
            put(jnp.linspace(0.1, 1.0, 64), "chain", on=ALL),
        )

    assert_agree(
        gradient(method="sequential", adjoint=SHARDED),
        gradient(method="sequential", adjoint="autodiff"),
        1e-12,
    )
