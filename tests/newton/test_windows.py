"""A window that slides along the chain: the same answer in less memory."""

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import Chain, Coarse, Diagonal, Newton, Result, Scalar, TrustRegion
from deeppcr.newton.acceleration import Anderson
from tests.newton.chain import CHAIN, Z0
from tests.problems import L, assert_agree, normal, rounding, solve, trajectory

CHAOS = Chain(lambda z, _: 3.9 * z * (1 - z), length=200)
WINDOWS = [5, L - 1, L, 4, 100]  # of one step: below


def nans(z0, xs):
    return jnp.full((L, *z0.shape), jnp.nan)


OPTIONS = {
    "prefix scan, guess of nan": {"linear": "prefix_scan", "initial_guess": nans},
    "coarse guess": {"linearize": Diagonal(), "initial_guess": Coarse(every=3)},
    "diagonal": {"linearize": "diagonal", "record": True},
    "trust region": {"damping": TrustRegion()},
    "anderson and scalars": {
        "linearize": Scalar(jnp.linspace(0.0, 1.0, L)),
        "acceleration": Anderson(2),
    },
}


@pytest.mark.parametrize(("name", "window"), list(zip(OPTIONS, WINDOWS, strict=True)))
def test_the_same_answer(name, window):
    """Each iteration makes at least one state right, in a window too."""
    solution = solve(CHAIN, Z0, method=Newton(window=window, max_iterations=2 * L, **OPTIONS[name]))
    assert_agree(solution.trajectory, trajectory(CHAIN, Z0))
    assert solution.result == Result.CONVERGED
    assert solution.stats.prefix == L
    assert solution.stats.iterations <= 2 * L


@pytest.mark.parametrize("on_failure", ["sequential", "return"])
def test_chaos_in_a_window_is_finished_sequentially_or_its_prefix_returned(on_failure):
    method = Newton(window=20, max_iterations=15, on_failure=on_failure)
    solution = solve(CHAOS, jnp.array(0.4), method=method)
    right = trajectory(CHAOS, jnp.array(0.4))
    if on_failure == "sequential":
        assert solution.result == Result.FINISHED_SEQUENTIALLY
        assert solution.stats.iterations == 15
        assert_agree(solution.trajectory, right)
    else:
        prefix = int(solution.stats.prefix)
        assert solution.result == Result.NOT_CONVERGED
        assert 10 <= prefix < 200
        assert_agree(solution.trajectory[:prefix], right[:prefix], 1e-8)


def test_it_takes_less_memory():
    """Matrices of 32 x 32 in 2000 steps."""
    length, width = 2000, 32
    weight = normal(3, width, width, scale=0.1).astype(jnp.float32)

    def temporaries(window):
        def value(xs, z0):
            chain = Chain(lambda z, x: jnp.tanh(weight @ z + x), xs)
            return deeppcr.solve(
                chain, z0, method=Newton(linear="sequential", window=window)
            ).trajectory

        shapes = (
            jax.ShapeDtypeStruct((length, width), jnp.float32),
            jax.ShapeDtypeStruct((width,), jnp.float32),
        )
        return jax.jit(value).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    matrices = 4 * length * width**2
    assert temporaries(50) < matrices / 4


def test_what_is_still_to_come_does_not_add_up_over_windows():
    weight = normal(0, 32, 32).astype(jnp.float32) / 32**0.5
    xs = normal(1, 400, 32).astype(jnp.float32)
    start = 3 * normal(2, 8, 32).astype(jnp.float32)
    chain = Chain(lambda z, x: z + 0.05 * jnp.tanh((z + x[None]) @ weight), xs)
    slow = Newton(linearize="identity", window=16)
    found = solve(chain, start, method=slow, batch_ndim=1)
    assert found.result == Result.CONVERGED
    assert_agree(found.trajectory, trajectory(chain, start), rounding(jnp.float32, 100))


def test_a_window_moves_on_at_once_by_the_users_tolerance():
    """States whose update is within it have converged, and leave before the step is applied."""
    chain = Chain(lambda z, x: z + 0.02 * jnp.tanh(z + x), normal(1, 400, 3))
    solution = solve(chain, 1 + Z0, method=Newton(linearize="identity", window=40, rtol=1e-2))
    assert solution.result == Result.CONVERGED
    assert solution.stats.iterations < 25  # 10 windows; one check later it would be 29
    assert_agree(solution.trajectory, trajectory(chain, 1 + Z0), 3e-2)
