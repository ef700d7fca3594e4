"""`deeppcr.scan` under jax's transformations and options, as `jax.lax.scan`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import deeppcr
from tests.drop_in.kinds import (
    INIT,
    LENGTH,
    METHODS,
    WEIGHT,
    XS,
    assert_same,
    by_lax,
    over,
    pairs,
    together,
)


@over("sequential, backprop", "newton, pcr")
def test_a_carry_that_is_returned_as_it_came_stays_unbatched_in_a_branch(scan):
    @jax.jit
    def f(x, y):
        def branch(_, y):
            return scan(lambda y, _: (y, None), y, None, length=1)[0]

        return jax.lax.cond(x < 0, branch, branch, x, y)

    assert jax.jit(jax.vmap(f, (0, None), None))(jnp.arange(3.0), 3.0) == 3.0


def shifted(scan, z):
    """The batch of the last leaf reaches the others."""
    return scan(lambda c, _: ((c[1], c[2], c[3], 0.0), c[0]), (0.0, 1.0, 2.0, z), None, 2)


def drawn(scan, z):
    def draw(c, _):
        key = jax.random.fold_in(c[0], 1)
        return (key, 0.5 * c[1] + jax.random.key_data(key)[0].astype(float) / 2**31), c[1]

    key = jax.random.fold_in(jax.random.key(0), z.astype(jnp.uint32))
    return scan(draw, (key, z), None, LENGTH)


def unusual(scan):
    def run(z):
        return shifted(scan, z), drawn(scan, z)

    return jax.jit(jax.vmap(run, axis_name="i"))(np.array([3.0, 4.0, 5.0]))


@METHODS
def test_vmap_of_unusual_steps(scan):
    assert_same(unusual(scan), by_lax(unusual))


@pairs([0, True], [3], ("auto", "newton"))
def test_unroll(case, scan):
    options = {"unroll": case, "_split_transpose": bool(case)}
    steps = {
        "floats": (lambda z, x: (jnp.tanh(WEIGHT @ z + x), z), INIT),
        "a counter": (lambda n, x: (n + 1, n), 0),
    }

    def both(scan):
        return [scan(f, init, XS, **options) for f, init in steps.values()]

    assert_same(together(both, scan), together(both, jax.lax.scan))


def test_unroll_is_heeded():
    """Where the chain runs as `jax.lax.scan`: no loop is left."""
    for options in ({"method": "sequential"}, {"adjoint": "autodiff"}):
        for f, init in ((lambda z, x: (jnp.sin(z + x), z), INIT), (lambda n, x: (n + 1, n), 0)):
            run = partial(deeppcr.scan, f, unroll=True, **options)
            assert "while" not in jax.jit(run).lower(init, XS).as_text()
            run = partial(deeppcr.scan, f, unroll=2, **options)
            assert "while" in jax.jit(run).lower(init, XS).as_text()
