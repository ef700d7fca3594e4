"""`Newton` over devices, with every option: as on one device, and as `jax.lax.scan`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import (
    Anderson,
    BlockDiagonal,
    Chain,
    Coarse,
    Newton,
    Result,
    Scalar,
    TrustRegion,
)
from tests.problems import assert_agree, normal
from tests.sharding.meshes import DEVICES, placed, run, states

L = 2 * DEVICES
WEIGHT = normal(0, 4, 4, scale=0.4)
XS = normal(1, L, 4)
Z0 = normal(2, 4)
CHAIN = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), XS)
UNEVEN = Chain(CHAIN.step, XS[:5])  # two for each device would be 8
RATE = 3.9
CHAOS = Chain(lambda z, _: RATE * z * (1 - z), length=96)  # Lyapunov exponent about 0.5


def solve(chain, z0, newton, batch_ndim=0):
    return run(partial(deeppcr.solve, method=newton, batch_ndim=batch_ndim), chain, z0)


def coarse_step(z, xs):
    return jnp.tanh(WEIGHT @ z + xs.mean(0))


OPTIONS = {
    "diagonal, loose": Newton(
        linearize="diagonal",
        initial_guess=lambda z, xs: xs + jnp.broadcast_to(z, xs.shape),
        rtol=1e-3,
        atol=1e-3,
        linear="chunked",
    ),
    "blocks, coarse": Newton(
        linearize=BlockDiagonal(2),
        linear="cyclic_reduction",
        initial_guess=Coarse(every=3),
    ),
    "scalar, damped, recorded": Newton(
        linearize=Scalar(0.3),
        damping=TrustRegion(),
        record=True,
        linear="prefix_scan",
        initial_guess="constant",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_does_what_it_does_on_one_device(name):
    newton = OPTIONS[name]
    found = solve(placed(CHAIN), Z0, newton)
    assert_agree(found.trajectory, run(states, CHAIN, Z0)[1], 1e-2 if newton.rtol else 1e-10)
    assert_agree(found.value, found.trajectory[-1])
    assert found.result == Result.CONVERGED
    assert found.stats.prefix == L
    assert found.stats.iterations.dtype == found.stats.prefix.dtype == jnp.int32
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(found.stats))
    if newton.record:
        here = solve(CHAIN, Z0, newton)
        assert (here.result, here.stats.prefix) == (Result.CONVERGED, L)
        iterations = int(here.stats.iterations)
        assert abs(int(found.stats.iterations) - iterations) <= 1
        np.testing.assert_allclose(
            found.stats.residuals[:iterations],
            here.stats.residuals[:iterations],
            rtol=1e-6,
            atol=1e-15,
        )
        assert np.isnan(found.stats.residuals[found.stats.iterations + 1 :]).all()


UNEVENLY = {
    "zero, accelerated, from a trajectory": Newton(
        linearize="zero",
        acceleration=Anderson(2),
        damping=TrustRegion(),
        initial_guess=normal(4, 5, 4),
    ),
    "coarse, recorded": Newton(initial_guess=Coarse(every=3, step=coarse_step), record=True),
}


@pytest.mark.parametrize("name", UNEVENLY)
def test_devices_that_cannot_share_evenly(name):
    found = solve(placed(UNEVEN), Z0, UNEVENLY[name])
    assert found.trajectory.shape == (5, 4)
    assert_agree(found.trajectory, run(states, UNEVEN, Z0)[1])
    assert found.result == Result.CONVERGED
    assert found.stats.prefix == 5
    assert found.stats.iterations <= 5 + 1  # what devices have too much takes none


def test_the_growth_rate_is_that_of_the_chain():
    """Not to the last digit: the rate is a mean over chunks, and devices cut them otherwise."""
    chain = Chain(lambda z, x: 0.5 * z * (1 + 0.1 * jnp.sin(z)) + x, normal(5, 64))
    there, here = (
        solve(chain, jnp.array(0.3), Newton(record=True)).stats.growth_rate
        for chain in (placed(chain), chain)
    )
    np.testing.assert_allclose(there, here, atol=0.05)


def test_chaos_is_finished_as_the_sequential_program_does_it():
    """A difference in the last place would be of order one after 75 steps."""
    z0, budget = jnp.array(0.4), 20
    found, here = (
        solve(chain, z0, Newton(max_iterations=budget)) for chain in (placed(CHAOS), CHAOS)
    )
    assert_agree(found.trajectory, run(states, CHAOS, z0)[1])
    assert found.result == Result.FINISHED_SEQUENTIALLY
    assert found.stats.iterations == here.stats.iterations == budget
    assert abs(int(found.stats.prefix) - int(here.stats.prefix)) <= 1
    assert budget <= found.stats.prefix < 96


def test_return_has_the_converged_prefix():
    length = 91
    chain, z0 = Chain(CHAOS.step, length=length), jnp.array(0.4)
    found = solve(placed(chain), z0, Newton(on_failure="return", max_iterations=12))
    prefix = int(found.stats.prefix)
    assert found.result == Result.NOT_CONVERGED
    assert not found.converged
    assert 12 <= prefix < length
    assert_agree(found.trajectory[:prefix], run(states, chain, z0)[1][:prefix], 1e-8)


def test_a_window_shorter_than_a_shard_is_an_error():
    with pytest.raises(ValueError, match=r"window is 1,.*over 4 devices.*expected None, or 2 or"):
        deeppcr.solve(placed(CHAIN), Z0, method=Newton(window=1))
    found = solve(placed(CHAIN), Z0, Newton(window=2, linearize="diagonal"))
    assert_agree(found.trajectory, run(states, CHAIN, Z0)[1])


def test_what_is_not_a_number_comes_out_as_from_the_sequential_program():
    index = 5
    chain = Chain(CHAIN.step, XS.at[index, 1].set(jnp.nan))
    found = solve(placed(chain), Z0, Newton())
    expected = run(states, chain, Z0)[1]
    assert np.isnan(expected[index:]).all(axis=1)[1:].all()
    np.testing.assert_array_equal(np.isnan(found.trajectory), np.isnan(expected))
    assert_agree(found.trajectory[:index], expected[:index])
