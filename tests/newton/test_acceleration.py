"""Anderson acceleration solves its least squares; the end of a chain never disturbs its start."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Anderson, Chain, Newton
from tests.problems import assert_agree, normal, solve

L, BATCH, W = 11, 2, 3
CALLS = 7


def iterates(seed=0, calls=CALLS):
    """(trajectory, proposed) of every call: random, for a call does not ask where they are from."""
    return [
        tuple(np.asarray(normal(seed + 2 * k + i, L, BATCH, W)) for i in range(2))
        for k in range(calls)
    ]


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@cache
def compiled(function):
    return jax.jit(function)


def run(accelerate, pairs, state=None):
    """What each call returns, and the last history."""
    call, outputs = compiled(accelerate.__call__), []
    state = accelerate.begin(jnp.asarray(pairs[0][0])) if state is None else state
    for trajectory, proposed in pairs:
        accelerated, state = call(state, trajectory, proposed)
        outputs.append(np.asarray(accelerated))
    return outputs, state


def reference(accelerate, pairs):
    """The last accelerated trajectory, step by step, by a dense solve for each."""
    pairs = [tuple(map(np.asarray, pair)) for pair in pairs[-accelerate.history - 1 :]]
    moves = [after[1] - before[1] for before, after in itertools.pairwise(pairs)]
    residuals = [proposed - trajectory for trajectory, proposed in pairs]
    changes = [after - before for before, after in itertools.pairwise(residuals)]
    expected = pairs[-1][1].copy()
    for step in range(1, L):  # the first step that is not converged is left alone
        for example in range(BATCH):
            so_far = np.s_[: step + 1, example]
            columns = np.stack([change[so_far].ravel() for change in changes], axis=1)
            target = residuals[-1][so_far].ravel()
            sizes = np.linalg.norm(columns, axis=0)
            unit = columns / sizes
            weights = np.linalg.solve(
                unit.T @ unit + accelerate.regularization * np.eye(len(changes)), unit.T @ target
            )
            share = weights @ (unit.T @ target) / (target @ target)
            expected[step, example] -= share * sum(
                g / s * move[step, example]
                for g, s, move in zip(weights, sizes, moves, strict=True)
            )
    return expected


@pytest.mark.parametrize(("history", "calls"), [(1, 2), (3, 3), (3, CALLS)])
def test_least_squares_over_the_steps_so_far(history, calls):
    accelerate, pairs = Anderson(history), iterates(calls=calls)
    assert_agree(run(accelerate, pairs)[0][-1], reference(accelerate, pairs))


@pytest.mark.parametrize("disturbance", [1.0, 1e200, np.nan], ids=["ordinary", "huge", "nan"])
def test_later_steps_do_not_disturb_earlier_ones(disturbance):
    pairs = iterates()
    trajectory, proposed = pairs[3]
    moved = changed(proposed, (5, 1), proposed[5, 1] + disturbance)
    disturbed = [*pairs[:3], (trajectory, moved), *pairs[4:]]
    outputs, others = run(Anderson(), pairs)[0], run(Anderson(), disturbed)[0]
    assert_agree([z[:5] for z in others], [z[:5] for z in outputs], 0)
    assert_agree([z[:, 0] for z in others], [z[:, 0] for z in outputs], 0)  # nor the other example
    assert not np.array_equal(others[-1][5:, 1], outputs[-1][5:, 1])
    for accelerated in [*others[:3], *others[4:]]:
        assert np.isfinite(accelerated).all()


@pytest.mark.parametrize("converged", [1, 4, L])
def test_what_has_converged_and_the_next_step_are_left_alone(converged):
    pairs = iterates()
    trajectory, proposed = pairs[-1]
    trajectory = changed(trajectory, np.s_[:converged], proposed[:converged] * (1 + 4e-16))
    accelerated = run(Anderson(), [*pairs[:-1], (trajectory, proposed)])[0][-1]
    plain = (accelerated == proposed).all(axis=-1)
    np.testing.assert_array_equal(
        plain, np.broadcast_to((np.arange(L) <= converged)[:, None], plain.shape)
    )


COUNT = 3  # steps that a window moves


def test_steps_that_enter_a_window_know_nothing():
    accelerate, pairs = Anderson(2), iterates()
    _, state = run(accelerate, pairs[:3])
    state = compiled(accelerate.shift)(state, jnp.int32(COUNT))
    later = run(accelerate, pairs[3:6], state)[0]
    entered = [
        (z == y).all(axis=-1)[-COUNT:].all() for z, (_, y) in zip(later, pairs[3:6], strict=True)
    ]
    assert entered == [True, False, False]  # two iterates make a difference
    assert not (later[0] == pairs[3][1]).all(axis=-1)[1:-COUNT].any()
    # Then they know one difference, and what earlier steps know beside it is none of theirs.
    assert_agree(later[1][-COUNT:], reference(Anderson(1), pairs[3:5])[-COUNT:])


def test_steps_that_leave_a_window_count_on():
    """What is left in the window is accelerated as if the whole chain still were."""
    accelerate, pairs = Anderson(), iterates()
    settled = np.s_[:COUNT]
    converged = [(changed(z, settled, 1.0), changed(y, settled, 1.0)) for z, y in pairs[3:]]
    whole = run(accelerate, [*pairs[:3], *converged])[0][4:]
    _, state = run(accelerate, [*pairs[:3], converged[0]])
    state = compiled(accelerate.shift)(state, jnp.int32(COUNT))

    def window(array):
        return np.concatenate([array[COUNT:], np.zeros_like(array[:COUNT])])

    inside = run(accelerate, [(window(z), window(y)) for z, y in converged[1:]], state)[0]
    assert_agree([z[: L - COUNT] for z in inside], [z[COUNT:] for z in whole], 1e-10)


def test_iterations_are_saved():
    weight, bias = normal(3, W, W, scale=0.15), normal(4, 60, W, scale=0.05)
    chain = Chain(lambda z, b: z + jnp.tanh(z @ weight) + b, bias)
    plain, accelerated = (
        solve(chain, normal(5, W), method=Newton("identity", acceleration=each))
        for each in (None, Anderson())
    )
    assert_agree(accelerated.trajectory, plain.trajectory)
    assert int(accelerated.stats.iterations) < 0.75 * int(plain.stats.iterations)
