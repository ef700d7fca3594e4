"""Windows on a chain over devices: the same answer, with the blocks of one window on each."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Anderson, Chain, Coarse, Newton, Result, Scalar, Sharded, TrustRegion
from tests.problems import assert_agree, normal
from tests.sharding.meshes import (
    EXAMPLES,
    WEIGHT,
    XS,
    Z0,
    expected,
    gradients,
    mesh,
    placed,
    run,
    states,
)
from tests.sharding.meshes import LENGTH as L
from tests.sharding.test_resources import messages

DEVICES = 4
EACH = L // DEVICES
CHAIN = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), XS)
CHAOS = Chain(lambda z, _: 3.9 * z * (1 - z), length=96)
there = partial(placed, on=mesh(chain=DEVICES))


def solve(chain, z0, newton, batch_ndim=0):
    return run(partial(deeppcr.solve, method=newton, batch_ndim=batch_ndim), chain, z0)


OPTIONS = {
    "one step, kept, from a trajectory": Newton(
        window=1, jacobian_every=2, initial_guess=normal(4, L, 3)
    ),
    "all but one": Newton(
        window=EACH - 1, linear="cyclic_reduction", linearize=Scalar(jnp.linspace(0.0, 0.5, L))
    ),
    "from memory": Newton(linearize="dense", memory=3 * 4 * 72),
    "zero, accelerated, coarse": Newton(
        window=3, linearize="zero", acceleration=Anderson(2), initial_guess=Coarse(every=4)
    ),
    "damped, recorded": Newton(
        window=3, damping=TrustRegion(), record=True, initial_guess="constant"
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_answer(name):
    found = solve(there(CHAIN), Z0, OPTIONS[name])
    assert_agree((found.value, found.trajectory), run(states, CHAIN, Z0))
    assert found.result == Result.CONVERGED
    assert found.stats.prefix == L
    assert found.stats.residual < 1e-12
    assert found.stats.iterations <= 2 * L
    assert found.stats.iterations.dtype == found.stats.prefix.dtype == jnp.int32
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(found.stats))
    if OPTIONS[name].record:
        iterations = int(found.stats.iterations)
        assert np.isfinite(found.stats.residuals[: iterations + 1]).all()
        assert np.isnan(found.stats.residuals[iterations + 1 :]).all()
        product = np.eye(3)
        for z in np.asarray(found.trajectory):  # whose slopes are 1 - z^2
            product = np.diag(1 - z**2) @ WEIGHT @ product
        rate = np.log(np.linalg.norm(product, 2)) / L
        np.testing.assert_allclose(found.stats.growth_rate, rate, atol=0.5)


def test_shards_without_a_window_are_solved_together():
    together, windows = (solve(there(CHAIN), Z0, Newton(window=w)) for w in (None, EACH))
    assert_agree(windows.trajectory, run(states, CHAIN, Z0)[1])
    assert together.stats.iterations == windows.stats.iterations


def test_a_length_that_devices_cannot_share():
    chain = Chain(CHAIN.step, XS[: L - 3])
    found = solve(there(chain), Z0, Newton(window=2))
    assert_agree((found.value, found.trajectory), run(states, chain, Z0))
    assert found.result == Result.CONVERGED
    assert found.stats.prefix == L - 3


def test_values_and_gradients_of_a_batch():
    """By initial states, inputs, and what the step captures; every window has examples."""
    newton = Newton(linear=Sharded(mesh(chain=DEVICES), "chain"), window=2)
    together = partial(deeppcr.scan, method=newton, batch_ndim=1)
    assert_agree(run(partial(gradients, together), EXAMPLES, XS, WEIGHT), expected())

    def apart(z0, xs):
        def step(z, x):
            return (z := jnp.tanh(z @ WEIGHT + x)), z.sum()

        one = partial(deeppcr.scan, step, xs=xs, method=newton)
        return jax.vmap(one, out_axes=(0, 1))(z0)[1]

    assert_agree(run(apart, EXAMPLES, XS), expected()[0][1])


def test_the_user_is_told_how_far_the_whole_chain_is():
    told = []
    newton = Newton(window=2, progress=lambda *news: told.append(news))
    found = solve(there(CHAIN), Z0, newton)
    jax.effects_barrier()
    iterations, prefixes, _ = zip(*sorted(told), strict=True)
    assert iterations[0] == 0
    assert iterations[-1] == found.stats.iterations
    assert prefixes[-1] == L
    assert list(prefixes) == sorted(prefixes)


# Chains that do not converge


def test_chaos_is_finished_as_the_sequential_program_does_it():
    """From the last state that is right to the last bit, which may be on an earlier device."""
    z0 = jnp.array(0.4)
    found = solve(there(CHAOS), z0, Newton(window=20, max_iterations=15))
    assert found.result == Result.FINISHED_SEQUENTIALLY
    assert found.stats.iterations == 15
    assert 15 <= found.stats.prefix < 96
    assert_agree(found.trajectory, run(states, CHAOS, z0)[1])


def test_return_has_the_converged_prefix():
    z0 = jnp.array(0.4)
    newton = Newton(window=20, max_iterations=40, on_failure="return")
    found = solve(there(CHAOS), z0, newton)
    prefix = int(found.stats.prefix)
    assert found.result == Result.NOT_CONVERGED
    assert found.stats.iterations == 40
    assert 24 < prefix < 96  # more than a shard
    assert_agree(found.trajectory[:prefix], run(states, CHAOS, z0)[1][:prefix], 1e-2)


def test_the_plan_says_so():
    for window, said in ((2, "2 steps at once"), (EACH, "all steps at once")):
        plan = deeppcr.plan(there(CHAIN), Z0, method=Newton(window=window))
        assert f"window      {said}" in str(plan)


# What it costs


@cache
def compiled_solve(length, width, window):
    weight = normal(3, width, width, scale=0.1).astype(jnp.float32)
    newton = Newton(linear="sequential", window=window)
    chain = there(
        Chain(lambda z, x: jnp.tanh(weight @ z + x), jnp.zeros((length, width), jnp.float32))
    )
    solve = jax.jit(lambda chain, z0: deeppcr.solve(chain, z0, method=newton).trajectory)
    return solve.lower(chain, jnp.zeros(width, jnp.float32)).compile()


def test_each_device_holds_the_blocks_of_a_window():
    """Matrices of 32 x 32, in shards of 500 steps."""
    length, width = 500 * DEVICES, 32
    matrices = 4 * length // DEVICES * width**2
    memory = {
        window: compiled_solve(length, width, window).memory_analysis().temp_size_in_bytes
        for window in (None, 25)
    }
    assert memory[None] > matrices
    assert memory[25] < matrices / 4


def test_no_message_grows_with_the_chain():
    sent = messages(compiled_solve(100 * DEVICES, 32, 25))
    assert sent == messages(compiled_solve(500 * DEVICES, 32, 25))
    assert max(size for _, size in sent) <= 32 * 32 * 4
