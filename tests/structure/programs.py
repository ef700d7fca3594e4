"""Random programs.

Each operation takes two arrays of six numbers in some shape, and gives an array of any shape.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WIDTH = 6
SHAPES = (6,), (2, 3), (3, 2)


def where(x, n):
    """An index below n, or one below zero or beyond, that depends on x."""
    return (3 * x.reshape(-1)[0]).astype(int) % (n + 2) - 1


def constants(*shape):
    return jnp.asarray(np.random.default_rng([7, *shape]).normal(size=shape))


def until(a, b):
    """A loop whose end depends on one element."""

    def going(trip):
        i, _, stop = trip
        return (i < 3) & (stop < 1.0)

    def body(trip):
        i, x, stop = trip
        return i + 1, jnp.roll(x, 2), stop + jnp.abs(b.reshape(-1)[0])

    return lax.while_loop(going, body, (0, a.reshape(-1), b.reshape(-1)[1]))[1]


def until_reached(x, bound):
    """A loop of a vector whose end depends on a number beside it."""
    return lax.while_loop(
        lambda trip: trip[0] < bound, lambda trip: (trip[0] + 0.5, trip[1] * 0.5), (-1.0, x)
    )[1]


def many_turns(a, b):
    """A loop with too many trips to follow each."""
    return lax.fori_loop(0, 5000, lambda i, x: x.at[i % 2].mul(0.999), a.reshape(-1))


OPERATIONS = {
    # element by element
    "where": lambda a, b: jnp.where(a > 0, jnp.cos(a), b.reshape(a.shape)),
    "masked": lambda a, b: jnp.where(jnp.arange(6) < 2, a.reshape(-1), jnp.roll(b.reshape(-1), 2)),
    # together
    "sorted by another": lambda a, b: lax.sort_key_val(b.reshape(2, 3), a.reshape(2, 3))[1],
    "convolved": lambda a, b: lax.conv_general_dilated(
        a.reshape(1, 2, 3), constants(4, 1, 2), (2,), [(1, 1)], feature_group_count=2
    ),
    "solved": lambda a, b: jnp.linalg.solve(
        constants(3, 2, 2) + jnp.tile(jnp.sin(a.reshape(3, 2, 1)), 2), b.reshape(3, 2, 1)
    ),
    "triangular by another": lambda a, b: lax.linalg.triangular_solve(
        constants(2, 2, 2) + a.reshape(-1)[:4].reshape(2, 2, 1) * constants(2, 1, 2),
        b.reshape(-1)[:4].reshape(2, 2, 1),
        lower=True,
        left_side=True,
    ),
    # by index
    "taken by another": lambda a, b: a.reshape(3, 2)[jnp.stack([where(b, 3), jnp.array(0)])],
    "taken along": lambda a, b: jnp.take_along_axis(
        a.reshape(2, 3), jnp.argsort(b.reshape(2, 3), axis=1), axis=1
    ),
    "taken in pairs": lambda a, b: a.reshape(2, 3)[jnp.arange(2), jnp.arange(2) + 1],
    "written": lambda a, b: a.reshape(-1).at[jnp.arange(3) * 2].set(b.reshape(-1)[:3]),
    "written twice": lambda a, b: a.reshape(-1).at[jnp.arange(4) // 2].set(b.reshape(-1)[:4]),
    "written by another": lambda a, b: a.reshape(3, 2).at[where(b, 3)].set(7.0),
    "added to others": lambda a, b: (
        jnp.roll(a.reshape(-1), 2).at[jnp.arange(3)].add(b.reshape(-1)[:3])
    ),
    "taken in rows in trip": lambda a, b: jax.vmap(lambda x, i: x[i])(
        a.reshape(2, 3), jnp.arange(4).reshape(2, 2) % 3
    ),
    "written in rows in trip": lambda a, b: jax.vmap(lambda x, i, y: x.at[i].set(y))(
        a.reshape(2, 3), jnp.arange(4).reshape(2, 2) % 3, b.reshape(3, 2)[1:]
    ),
    "cut by another": lambda a, b: lax.dynamic_slice(a.reshape(3, 2), (where(b, 3), 0), (1, 2)),
    "pasted by another": lambda a, b: lax.dynamic_update_slice(
        a.reshape(3, 2), jnp.ones((1, 1)), (where(b, 3), 1)
    ),
    # programs inside
    "many trips": many_turns,
    "until": until,
    "until, row by row": lambda a, b: jax.vmap(until_reached)(
        a.reshape(-1)[:4].reshape(2, 2), b.reshape(-1)[:2]
    ),
    "reached": lambda a, b: lax.fori_loop(
        0, 5, lambda i, y: jnp.concatenate([a.reshape(-1)[:1], y[:-1]]), jnp.zeros(6)
    ),
    "shifted": lambda a, b: lax.scan(
        lambda c, x: (x, c), jnp.zeros(2), a.reshape(3, 2), reverse=True
    )[1],
    "branches by another": lambda a, b: lax.cond(
        b.reshape(-1)[0] > 0, lambda x: x[0], lambda x: x[-1] * 2, a
    ),
}


def fitted(rng, x, other):
    """Six of the numbers in x, in some shape; what is missing is taken from another array."""
    x = x.reshape(-1).astype(jnp.float64)
    if x.size < WIDTH:
        x = jnp.concatenate([x, other.reshape(-1)[x.size :]])
    return x[:WIDTH].reshape(SHAPES[rng.integers(len(SHAPES))])


def aside(function, operands):
    """``function`` of the first six entries for each operand, as the next values of six more.

    These have no part in it, so nothing but the function joins them with what it depends on.
    """

    def step(z):
        arrays = jnp.split(z, operands + 1)
        return jnp.concatenate([*arrays[:-1], function(*arrays[:-1]).reshape(-1)])

    return step


def random_program(seed):
    """Up to four operations, each on what is there so far, on six of twelve entries."""
    rng = np.random.default_rng(seed)
    names = rng.choice(list(OPERATIONS), size=rng.integers(1, 5))

    def function(z):
        choices = np.random.default_rng(seed)
        arrays = [z.reshape(SHAPES[choices.integers(len(SHAPES))])]
        for name in names:
            a, b, other = (arrays[choices.integers(len(arrays))] for _ in range(3))
            arrays.append(fitted(choices, OPERATIONS[str(name)](a, b), other))
        return arrays[-1]

    return aside(function, 1)
