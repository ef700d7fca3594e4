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


def integers(count, n):
    return jnp.asarray(np.random.default_rng([5, count, n]).integers(-1, n + 1, count))


@jax.custom_jvp
def reaching(x):
    """The sine, whose derivative is the neighbour's."""
    return jnp.sin(x)


@reaching.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return jnp.sin(x), jnp.roll(t, 1, axis=-1)


def split(a, b):
    head, middle, tail = jnp.split(a.reshape(-1), [1, 3])
    return jnp.concatenate([jnp.sin(tail), middle * b.reshape(-1)[:2], head])


def counted(a, b):
    """A loop that changes one element after another."""
    return lax.fori_loop(1, 4, lambda i, x: x.at[i].set(x[i] * b.reshape(-1)[i - 1]), a.reshape(-1))


def until(a, b):
    """A loop whose end depends on one element."""

    def going(turn):
        i, _, stop = turn
        return (i < 3) & (stop < 1.0)

    def body(turn):
        i, x, stop = turn
        return i + 1, jnp.roll(x, 2), stop + jnp.abs(b.reshape(-1)[0])

    return lax.while_loop(going, body, (0, a.reshape(-1), b.reshape(-1)[1]))[1]


def until_reached(x, bound):
    """A loop of a vector whose end depends on a number beside it."""
    return lax.while_loop(
        lambda turn: turn[0] < bound, lambda turn: (turn[0] + 0.5, turn[1] * 0.5), (-1.0, x)
    )[1]


def many_turns(a, b):
    """A loop with too many turns to follow each."""
    return lax.fori_loop(0, 5000, lambda i, x: x.at[i % 2].mul(0.999), a.reshape(-1))


def tangent_of(a, b):
    return jax.jvp(lambda x: x * jnp.roll(x, 1), (a,), (b.reshape(a.shape),))[1]


OPERATIONS = {
    # element by element
    "sin": lambda a, b: jnp.sin(a),
    "round": lambda a, b: jnp.round(a),
    "sign": lambda a, b: jnp.sign(a - 0.2),
    "relu": lambda a, b: jax.nn.relu(a),
    "softplus": lambda a, b: jax.nn.softplus(a),
    "add": lambda a, b: a + b.reshape(a.shape),
    "max": lambda a, b: jnp.maximum(a, b.reshape(a.shape)),
    "atan2": lambda a, b: jnp.atan2(a, b.reshape(a.shape)),
    "where": lambda a, b: jnp.where(a > 0, jnp.cos(a), b.reshape(a.shape)),
    "clip": lambda a, b: jnp.clip(a, b.reshape(-1)[0], b.reshape(-1)[0] + 1.0),
    "compare": lambda a, b: (a < b.reshape(a.shape)).astype(a.dtype),
    "where another": lambda a, b: jnp.where(b.reshape(a.shape) > 0, jnp.cos(a), a),
    "masked": lambda a, b: jnp.where(jnp.arange(6) < 2, a.reshape(-1), jnp.roll(b.reshape(-1), 2)),
    "triangle": lambda a, b: jnp.tril(a.reshape(2, 3)),
    "complex": lambda a, b: (lax.complex(a, b.reshape(a.shape)) * (0.3 + 0.4j)).imag,
    "bits": lambda a, b: lax.bitcast_convert_type(
        lax.bitcast_convert_type(a, jnp.int32), jnp.float64
    ),
    # to other places
    "turned": lambda a, b: a.T,
    "reversed": lambda a, b: a[::-1],
    "reversed product": lambda a, b: lax.rev(a.reshape(-1), [0]) * b.reshape(-1),
    "strided": lambda a, b: a.reshape(-1)[1::2],
    "rolled": lambda a, b: jnp.roll(a.reshape(-1), 2),
    "first row": lambda a, b: jnp.broadcast_to(a[:1], a.shape),
    "outer": lambda a, b: a.reshape(-1)[:3, None] * b.reshape(-1)[None, 3:5],
    "stacked": lambda a, b: jnp.stack([a, b.reshape(a.shape)], axis=-1),
    "tiled": lambda a, b: jnp.tile(a.reshape(-1)[:2], 3),
    "padded": lambda a, b: lax.pad(a.reshape(-1), b.reshape(-1)[2], [(-1, 2, 1)]),
    "split": split,
    # together
    "sum": lambda a, b: a.sum(0),
    "norm": lambda a, b: a / (1 + jnp.abs(a).sum(-1, keepdims=True)),
    "product": lambda a, b: a.reshape(2, 3).prod(1),
    "argmax": lambda a, b: jnp.argmax(a.reshape(3, 2), axis=1).astype(a.dtype),
    "cumulated": lambda a, b: jnp.cumsum(a, axis=0),
    "cumulated back": lambda a, b: lax.cummax(a, axis=0, reverse=True),
    "sorted": lambda a, b: jnp.sort(a.reshape(3, 2), axis=1),
    "sorted by another": lambda a, b: lax.sort_key_val(b.reshape(2, 3), a.reshape(2, 3))[1],
    "largest": lambda a, b: lax.top_k(a.reshape(2, 3), 2)[0],
    "dot": lambda a, b: jnp.tanh(a.reshape(2, 3) @ constants(3, 2)),
    "batched dot": lambda a, b: jnp.einsum("bi,bij->bj", a.reshape(3, 2), constants(3, 2, 2)),
    "row by row": lambda a, b: jnp.einsum("bi,bi->b", a.reshape(3, 2), b.reshape(3, 2)),
    "gram": lambda a, b: jnp.einsum("ib,ic->bci", a.reshape(2, 3), b.reshape(2, 3)),
    "convolved": lambda a, b: lax.conv_general_dilated(
        a.reshape(1, 2, 3), constants(4, 1, 2), (2,), [(1, 1)], feature_group_count=2
    ),
    "dilated": lambda a, b: lax.conv_general_dilated(
        a.reshape(1, 1, 6), constants(1, 1, 2), (1,), [(0, 0)], (2,), (3,)
    ),
    "summed channels": lambda a, b: lax.conv_general_dilated(
        a.reshape(1, 2, 3), constants(1, 2, 1), (1,), "VALID"
    ),
    "pooled": lambda a, b: lax.reduce_window(a.reshape(-1), 0.0, lax.add, (2,), (2,), "VALID"),
    "pooled max": lambda a, b: lax.reduce_window(
        a.reshape(-1), -jnp.inf, lax.max, (2,), (1,), [(1, 0)], None, (2,)
    ),
    "transformed": lambda a, b: jnp.fft.rfft(a.reshape(2, 3)).real,
    "solved": lambda a, b: jnp.linalg.solve(
        constants(3, 2, 2) + jnp.tile(jnp.sin(a.reshape(3, 2, 1)), 2), b.reshape(3, 2, 1)
    ),
    "triangular": lambda a, b: lax.linalg.triangular_solve(
        constants(2, 3, 3), a.reshape(2, 3, 1), left_side=True, lower=True
    ),
    "triangular by another": lambda a, b: lax.linalg.triangular_solve(
        constants(2, 2, 2) + a.reshape(-1)[:4].reshape(2, 2, 1) * constants(2, 1, 2),
        b.reshape(-1)[:4].reshape(2, 2, 1),
        lower=True,
        left_side=True,
    ),
    # by index
    "taken": lambda a, b: a.reshape(-1)[4 - jnp.arange(5)],
    "taken by constants": lambda a, b: a.reshape(3, 2)[integers(2, 3)],
    "taken by another": lambda a, b: a.reshape(3, 2)[jnp.stack([where(b, 3), jnp.array(0)])],
    "taken along": lambda a, b: jnp.take_along_axis(
        a.reshape(2, 3), jnp.argsort(b.reshape(2, 3), axis=1), axis=1
    ),
    "taken in pairs": lambda a, b: a.reshape(2, 3)[jnp.arange(2), jnp.arange(2) + 1],
    "taken, clipped": lambda a, b: jnp.take(a.reshape(3, 2), jnp.arange(4), axis=0, mode="clip"),
    "written": lambda a, b: a.reshape(-1).at[jnp.arange(3) * 2].set(b.reshape(-1)[:3]),
    "written twice": lambda a, b: a.reshape(-1).at[jnp.arange(4) // 2].set(b.reshape(-1)[:4]),
    "written by constants": lambda a, b: (
        a.reshape(3, 2).at[integers(2, 3)].set(b.reshape(3, 2)[:2])
    ),
    "written by another": lambda a, b: a.reshape(3, 2).at[where(b, 3)].set(7.0),
    "written outside": lambda a, b: jnp.roll(a.reshape(-1), 2).at[6 + jnp.arange(1)].set(7.0),
    "added to others": lambda a, b: (
        jnp.roll(a.reshape(-1), 2).at[jnp.arange(3)].add(b.reshape(-1)[:3])
    ),
    "added by constants": lambda a, b: jnp.zeros(6).at[integers(2, 6)].add(b.reshape(-1)[3:5]),
    "taken in rows": lambda a, b: jax.vmap(lambda x: x[jnp.arange(2) + 1])(
        a.reshape(3, 2)[::-1].reshape(2, 3)
    ),
    "taken in rows in turn": lambda a, b: jax.vmap(lambda x, i: x[i])(
        a.reshape(2, 3), jnp.arange(4).reshape(2, 2) % 3
    ),
    "written in rows in turn": lambda a, b: jax.vmap(lambda x, i, y: x.at[i].set(y))(
        a.reshape(2, 3), jnp.arange(4).reshape(2, 2) % 3, b.reshape(3, 2)[1:]
    ),
    "written in rows": lambda a, b: jax.vmap(lambda x, y: x.at[jnp.arange(2)].set(y))(
        a.reshape(2, 3), b.reshape(3, 2)[:2]
    ),
    "written in rows by constants": lambda a, b: jax.vmap(lambda x, i: x.at[i].add(1.0))(
        a.reshape(2, 3)[::-1], integers(2, 3)
    ),
    "added": lambda a, b: (
        a.reshape(-1).at[jnp.array([0, 0]) + jnp.arange(2)].add(b.reshape(-1)[2:4])
    ),
    "added to rows": lambda a, b: a.reshape(3, 2).at[1].multiply(b.reshape(3, 2)[0]),
    "summed by segment": lambda a, b: jax.ops.segment_sum(a.reshape(-1), jnp.arange(6) // 2, 3),
    "cut": lambda a, b: lax.dynamic_slice(a.reshape(3, 2), (5, 0), (2, 1)),
    "cut by another": lambda a, b: lax.dynamic_slice(a.reshape(3, 2), (where(b, 3), 0), (1, 2)),
    "cut by a constant": lambda a, b: lax.dynamic_slice(
        a.reshape(3, 2), (integers(1, 2)[0], 1), (2, 1)
    ),
    "pasted": lambda a, b: lax.dynamic_update_slice(
        a.reshape(3, 2), b.reshape(3, 2)[:2, :1], (9, 1)
    ),
    "pasted by another": lambda a, b: lax.dynamic_update_slice(
        a.reshape(3, 2), jnp.ones((1, 1)), (where(b, 3), 1)
    ),
    "pasted by a constant": lambda a, b: lax.dynamic_update_slice(
        a.reshape(3, 2), b.reshape(3, 2)[:1], (integers(1, 2)[0], 0)
    ),
    # programs inside
    "jit": lambda a, b: jax.jit(lambda a, b: (a * b.reshape(a.shape), a.sum()))(a, b)[0],
    "checkpoint": lambda a, b: jax.checkpoint(lambda a: jnp.sin(a) * a)(a),
    "vmap": lambda a, b: jax.vmap(lambda x, y: jnp.cumsum(x) * y[0])(
        a.reshape(2, 3), b.reshape(2, 3)
    ),
    "mapped": lambda a, b: lax.map(lambda x: jnp.sin(x) * x[0], a.reshape(3, 2)),
    "scanned": lambda a, b: lax.scan(
        lambda c, x: (c * 0.5 + x[0], c * x), b.reshape(-1)[0], a.reshape(3, 2), reverse=True
    )[1],
    "carried": lambda a, b: lax.scan(
        lambda c, _: (jnp.roll(c, 3) * 0.9, c.sum()), a.reshape(-1), None, 3
    )[0],
    "counted": counted,
    "many turns": many_turns,
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
    "branches, row by row": lambda a, b: jax.vmap(
        lambda x: lax.cond(x[1] > 0, jnp.sin, jnp.cos, x)
    )(a.reshape(3, 2)[:2]),
    "scanned, row by row": lambda a, b: jax.vmap(
        lambda x: lax.scan(lambda c, y: (c + y, c * y), 1.0, x)[1]
    )(a.reshape(2, 3)),
    "branches": lambda a, b: lax.cond(
        constants(1)[0] > 0, lambda x: jnp.sin(x), lambda x: x[::-1], a
    ),
    "branches by another": lambda a, b: lax.cond(
        b.reshape(-1)[0] > 0, lambda x: x[0], lambda x: x[-1] * 2, a
    ),
    "switched": lambda a, b: lax.switch(2, [jnp.sin, jnp.cos, lambda x: x[::-1]], a),
    "reaching": lambda a, b: reaching(a),
    "tangent": tangent_of,
}
COSTLY = (
    "solved",
    "mapped",
    "scanned",
    "carried",
    "counted",
    "many turns",
    "until",
    "branches",
    "branches by another",
    "switched",
)


def fitted(rng, x, other):
    """Six numbers out of the numbers in x, in some shape.

    What is missing is taken from another array.
    """
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


def alone(operation):
    """One operation on twelve of eighteen entries."""

    def function(a, b):
        return fitted(
            np.random.default_rng(0), operation(a.reshape(2, 3), b.reshape(3, 2)), jnp.zeros(WIDTH)
        )

    return aside(function, 2)


def random_program(seed):
    """Up to four operations, each on what is there so far, on six of twelve entries."""
    rng = np.random.default_rng(seed)
    odds = np.array([0.2 if name in COSTLY else 1.0 for name in OPERATIONS])
    names = rng.choice(list(OPERATIONS), size=rng.integers(1, 5), p=odds / odds.sum())

    def function(z):
        choices = np.random.default_rng(seed)
        arrays = [z.reshape(SHAPES[choices.integers(len(SHAPES))])]
        for name in names:
            a, b, other = (arrays[choices.integers(len(arrays))] for _ in range(3))
            arrays.append(fitted(choices, OPERATIONS[str(name)](a, b), other))
        return arrays[-1]

    return aside(function, 1)
