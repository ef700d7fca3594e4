"""Which results depend on which inputs: through calls, branches, loops, and rules of the user's."""

import jax
import pytest

from depth.dependence import dependence


@jax.custom_jvp
def first(x, y):
    return x


first.defjvp(lambda primals, tangents: (first(*primals), tangents[1]))


def swapped(carry, _):
    x, y, z = carry
    return (y, x, z), x


PROGRAMS = {
    "a call": (jax.jit(lambda x, y, z: (y, x * z)), [{1}, {0, 2}]),
    "a rule of the user's": (lambda x, y, z: first(x, y), [{0}]),
    "a branch": (
        lambda x, y, z: jax.lax.cond(x > 0, lambda: (2 * y, z), lambda: (y, 2 * y)),
        [{0, 1}, {0, 1, 2}],
    ),
    "a scan": (lambda x, y, z: jax.lax.scan(swapped, (x, y, z), None, 3), [{1}, {0}, {2}, {0, 1}]),
    "a loop": (
        lambda x, y, z: jax.lax.while_loop(
            lambda c: c[0] < z, lambda c: (c[0] + 1, c[1] * c[2], c[2]), (x, y, z)
        ),
        [{0, 2}, {0, 1, 2}, {2}],
    ),
    "a loop that exchanges": (
        lambda x, y, z: jax.lax.while_loop(
            lambda c: c[0] < 9, lambda c: (c[0] * 2, c[2], c[1]), (x, y, z)
        ),
        [{0}, {0, 1, 2}, {0, 1, 2}],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_dependence(name):
    f, expected = PROGRAMS[name]
    closed = jax.make_jaxpr(f)(1.0, 2.0, 3.0)
    program = getattr(closed, "jaxpr", closed)
    found = dependence(program, [frozenset({i}) for i in range(3)])
    assert [set(each) for each in found] == expected
