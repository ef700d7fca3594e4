"""Steps that people write: groups of their states are as small as they truly are."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.structure.dependence import differentiated, moved, structure_of

N = 6
A, B = (jnp.asarray(np.random.default_rng(i).normal(size=N)) for i in (1, 2))


def singles(n=N):
    return [[i] for i in range(n)]


def pairs(n):
    """The i-th entries of two leaves."""
    return [[i, n + i] for i in range(n)]


def rows(*shape):
    return np.arange(np.prod(shape)).reshape(shape).tolist()


def diagonal_lstm(carry):
    h, c = carry
    i, f, g, o = jnp.split(jnp.concatenate([h, h * 2, h * 3, h * 4]), 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def runge_kutta(slope):
    def step(z):
        k1 = slope(z)
        k2 = slope(z + 0.05 * k1)
        k3 = slope(z + 0.05 * k2)
        return z + 0.1 / 6 * (k1 + 4 * k2 + slope(z + 0.1 * k3))

    return step


def newton_root(z):
    """A loop that stops when a counter says so."""

    def body(trip):
        i, y = trip
        return i + 1, y - (y**3 + y - z) / (3 * y**2 + 1)

    return lax.while_loop(lambda trip: trip[0] < 5, body, (0, z))[1]


def statistics_aside(z):
    """What is computed only to be looked at joins nothing."""
    new, norm = jax.jit(lambda z: (jnp.sin(z), jnp.linalg.norm(z)))(z)
    jax.debug.callback(lambda norm: None, norm)
    return new


ELEMENTWISE = {
    "vmap": jax.vmap(lambda x: jnp.tanh(x) * x),
    "rk4 in a loop": lambda z: lax.fori_loop(0, 3, lambda i, z: runge_kutta(jnp.cos)(z) * i, z),
    "while": newton_root,
    "there and back": lambda z: (
        jnp.sin(z.reshape(2, 3).T[::-1]).reshape(-1).reshape(3, 2)[::-1].T.reshape(-1)
    ),
    "statistics aside": statistics_aside,
}
ZERO = jnp.zeros(N)
HALF = jnp.outer(A[:3], B[:3])  # as wide as the batch is large: no shape tells one from the other
SQUARE_BATCH = jnp.zeros((3, 3)), 1, rows(1, 3)
CASES = {
    **{name: (step, ZERO, 0, singles()) for name, step in ELEMENTWISE.items()},
    "lstm, diagonal": (diagonal_lstm, (ZERO, ZERO), 0, pairs(N)),
    "oscillators, rk4": (
        runge_kutta(lambda z: jnp.concatenate([z[3:], -jnp.sin(z[:3])])),
        ZERO,
        0,
        pairs(3),
    ),
    "rolled by two": (lambda z: jnp.roll(z, 2), ZERO, 0, [[0, 2, 4], [1, 3, 5]]),
    "convolved images": (
        lambda z: lax.conv_general_dilated(z[:, None], jnp.ones((1, 1, 2)), (1,), "SAME")[:, 0],
        jnp.zeros((4, 3)),
        1,
        rows(1, 3),
    ),
    "columns by index": (
        lambda z: z.at[:, 1].set(jnp.sin(z[:, jnp.array(0)])),
        jnp.zeros((4, 3)),
        1,
        rows(1, 3),
    ),
    "a row by index": (
        lambda z: z.at[jnp.argmax(A[:2])].set(jnp.sin(z[0])),
        jnp.zeros((2, 3)),
        0,
        pairs(3),
    ),
    "a cut of some columns": (
        lambda z: lax.dynamic_update_slice(z, z[:, :1], (0, jnp.argmax(A[:2]))),
        jnp.zeros((4, 3)),
        1,
        rows(1, 3),
    ),
    "rows by indices of their own": (
        lambda z: jax.vmap(lambda x, i, y: x.at[i].set(y[i]))(z, jnp.array([[1], [0]]), z),
        jnp.zeros((2, 3)),
        0,
        rows(2, 3),
    ),
    "a loop ended by one": (
        lambda z: lax.while_loop(lambda y: y[0] < 1, lambda y: y + 1, z),
        ZERO,
        0,
        rows(1, N),
    ),
    "a loop ended by another": (
        lambda s: (
            s[0],
            lax.while_loop(lambda y: y[0] < s[0][0], lambda y: (y[0] + 1, y[1] * 2), (0.0, s[1]))[
                1
            ],
        ),
        (jnp.zeros(2), jnp.zeros(2)),
        0,
        [[0, 2, 3], [1]],
    ),
    "a pair beside two alone": (  # which share a row
        lambda z: jnp.concatenate([jnp.tile(z[:2].sum()[None], 2), jnp.sin(z[2:])]),
        jnp.zeros(4),
        0,
        [[0, 1], [2, 3]],
    ),
    "an unknown primitive": (lambda z: jax.pure_callback(np.sin, z, z), ZERO, 0, rows(1, N)),
    "scalar": (jnp.sin, jnp.zeros(()), 0, singles(1)),
    "a batch": (lambda z: jax.nn.relu(z) * A[:3][None], jnp.zeros((4, 3)), 1, singles(3)),
    "a layer of a batch": (
        lambda z: jnp.tanh(z @ HALF + jnp.broadcast_to(HALF[0], z.shape)),
        *SQUARE_BATCH,
    ),
    "layer norm of a batch": (
        lambda z: (z - z.mean(1)[:, None].repeat(3, 1)) / (1 + z.std(1)[:, None].repeat(3, 1)),
        *SQUARE_BATCH,
    ),
    "turned twice": (lambda z: (HALF @ z.T).T, *SQUARE_BATCH),
}


@pytest.mark.parametrize("name", CASES)
def test_groups(name):
    step, state, batch_ndim, groups = CASES[name]
    found = structure_of(step, state, batch_ndim)
    assert found.separate
    assert (
        sorted(sorted(entry for entry in row if entry >= 0) for row in found.groups.tolist())
        == groups
    )
    assert found.kind == (
        "elementwise" if len(groups[0]) == 1 else "dense" if len(groups) == 1 else "block-diagonal"
    )
    assert (found.mixed_by == "") == (found.kind == "elementwise")


FLAT = [
    name
    for name, (_, state, _, _) in CASES.items()
    if np.shape(state) == (N,) and name != "an unknown primitive"
]


@cache
def dependences():
    steps = [CASES[name][0] for name in FLAT]
    both = zip(moved(steps, N), differentiated(steps, N), strict=True)
    return dict(zip(FLAT, [a | b for a, b in both], strict=True))


@pytest.mark.parametrize("name", FLAT)
def test_the_groups_are_those_that_there_are(name):
    depends = dependences()[name]
    joined = (
        np.linalg.matrix_power((depends | depends.T | np.eye(N, dtype=bool)).astype(int), N) > 0
    )
    assert sorted({tuple(np.flatnonzero(row)) for row in joined}) == [
        tuple(group) for group in CASES[name][3]
    ]
