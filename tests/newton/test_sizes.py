"""States whose entries differ in size: each entry is as right as if it were alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.lower import unpack
from deeppcr.newton.convergence import ContractionCriterion, Evaluation, NewtonCriterion
from deeppcr.newton.iterate import Convergence, Stagnation
from tests.problems import normal, solve, trajectory

LENGTH = 120
EPS = float(jnp.finfo(jnp.float32).eps)

METHODS = {
    "newton": deeppcr.Newton(),
    "window": deeppcr.Newton(window=30),
    "damping": deeppcr.Newton(damping=deeppcr.TrustRegion()),
    "acceleration": deeppcr.Newton(acceleration=deeppcr.Anderson()),
    "diagonal": deeppcr.Newton(linearize="diagonal"),
}


def beside_a_clock(z, x):
    """A clock, and an entry that contracts to a size of 1."""
    clock, entry = z
    return clock + 1, jnp.tanh(1.5 * entry + x)


def read_from_a_clock(z, x):
    """The same, where the entry looks at the clock, too."""
    clock, entry = z
    return clock + 1, jnp.tanh(1.5 * entry + jnp.sin(0.01 * clock) * x)


def of_any_size(z, x):
    """Entries that do the same on scales of 1e-6 to 1e6."""
    scale, entry = z
    return scale, scale * jnp.tanh(1.2 * entry / scale + x)


def dying_out(z, x):
    """An entry that falls from a large size to a small one, beside one that stays."""
    large, small = z
    return 0.5 * large + x, jnp.tanh(1.5 * small + x)


CHAINS = {
    "clock from 1e4": (beside_a_clock, (1e4, 1.0)),
    "reads a clock": (read_from_a_clock, (1e4, 1.0)),
    "of any size": (of_any_size, ([1e-6, 1.0, 1e6], [1e-6, 1.0, 1e6])),
    "dying out": (dying_out, (1e6, 1.0)),
}


def arrays(chain, dtype=jnp.float32):
    step, initial = CHAINS[chain]
    return step, tuple(jnp.asarray(z, dtype) for z in initial), normal(0, LENGTH).astype(dtype)


def largest_error(found, right, allowance):
    """In units in the last place: of every entry, of the size that it has around each step."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        a, b = (np.asarray(x, np.float64).reshape(LENGTH, -1) for x in (a, b))
        near = np.stack([np.abs(np.roll(b, shift, axis=0)) for shift in range(-4, 5)]).max(axis=0)
        error = np.abs(a - b)
        worst = max(worst, float((error[error > 0] / (allowance * near[error > 0])).max(initial=0)))
    return worst


CASES = [
    *((chain, "newton") for chain in list(CHAINS)[:3]),
    *((chain, "damping") for chain in ("reads a clock", "of any size")),
    *((chain, "acceleration") for chain in ("clock from 1e4", "of any size")),
    ("of any size", "diagonal"),
]


@pytest.mark.parametrize(("chain", "method"), CASES)
def test_every_entry_is_right(chain, method):
    step, z, xs = arrays(chain)
    solution = solve(deeppcr.Chain(step, xs), z, method=METHODS[method])
    # The clock of 1e4 reaches the entry that looks at it multiplied by 0.01: so does its rounding.
    allowance = EPS * (100 if step is read_from_a_clock else 1)
    assert (
        largest_error(solution.trajectory, trajectory(deeppcr.Chain(step, xs), z), allowance) < 200
    )
    assert solution.result == deeppcr.Result.CONVERGED


def test_each_leaf_is_judged_in_its_own_dtype():
    """A leaf of bfloat16 does not make one of float32 coarse."""
    _, others, xs = arrays("dying out")
    z = jnp.ones(2, jnp.bfloat16), others

    def step(z, x):
        return jnp.tanh(0.5 * z[0] + x.astype(jnp.bfloat16)), dying_out(z[1], x)

    chain = deeppcr.Chain(step, xs)
    found, right = solve(chain, z, method="newton"), trajectory(chain, z)
    assert largest_error(found.trajectory[1], right[1], EPS) < 200
    assert found.result == deeppcr.Result.CONVERGED


def test_rounding_that_reaches_a_small_entry_ends_in_a_plateau():
    """The step adds and subtracts a large entry: the small one is right to its rounding."""

    def step(z, x):
        both = jnp.tanh(1.5 * z[1] + x) + 1e3 * jnp.tanh(z[0])
        large = jnp.tanh(z[0]) * 1e3
        return jnp.tanh(z[0] * 0.9 + 0.1), both - large

    z, xs = (jnp.float32(0.9), jnp.float32(1)), normal(0, LENGTH).astype(jnp.float32)
    chain = deeppcr.Chain(step, xs)
    solution, right = solve(chain, z, method="newton"), trajectory(chain, z)
    assert solution.converged
    np.testing.assert_allclose(solution.trajectory[1], right[1], rtol=0, atol=16 * 1e3 * EPS)


@pytest.mark.parametrize("criterion", [NewtonCriterion, partial(ContractionCriterion, working=EPS)])
@pytest.mark.parametrize(("spoilt", "prefix"), [("nothing", 5), ("residual", 3), ("update", 2)])
def test_residual_and_update_have_to_be_small_at_every_step(spoilt, prefix, criterion):
    test = criterion(None, 0.0, ((2, EPS),))
    states = jnp.ones((5, 2), jnp.float32)
    value = states.at[3, 1].add(1e-3) if spoilt == "residual" else states
    update = jnp.zeros_like(states).at[2, 0].add(0.1 if spoilt == "update" else 0)

    @jax.jit
    def judged(*arrays):
        return test(Evaluation(*arrays), jnp.int32(1), Convergence.unknown(states))

    assert judged(value, states, states, update).converged == prefix


def test_a_window_that_moves_takes_the_history_of_its_steps_along():
    old = Convergence.unknown(jnp.ones((3, 2)))._replace(
        update_norm=jnp.arange(3.0), contraction=jnp.arange(3.0) / 4
    )
    shifted = jax.jit(old.shifted)
    stays = shifted(jnp.int32(0), jnp.zeros(3, bool), jnp.int32(7))
    jax.tree.map(np.testing.assert_array_equal, stays, old)
    moved = shifted(jnp.int32(1), jnp.arange(3) == 2, jnp.int32(7))
    assert moved.update_norm.tolist() == [1, 2, np.inf]
    assert moved.contraction.tolist() == [0.25, 0.5, np.inf]
    assert Stagnation(*unpack(moved.stagnation)) == (np.inf, np.inf, 6, 6)
