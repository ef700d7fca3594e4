"""Scans, which count as their unrolled programs, and branches: what random programs have not."""

import jax.numpy as jnp
from jax import lax

from tests.depth.cases import Case, b, check, f, i, sines, table

BILLION = 10**9


def repeat(step, count, **options):
    """``carry -> step(carry)``, so many times, without inputs and results."""
    return lambda carry: lax.scan(
        lambda carry, _: (step(carry), None), carry, length=count, **options
    )[0]


def swap(pair):
    return jnp.sin(pair[1]), pair[0]


def nested(*counts):
    """Sines, so many times so many times."""
    fn = jnp.sin
    for count in counts:
        fn = repeat(fn, count)
    return fn


def cond(p, then, otherwise, *operands):
    return lax.cond(p, then, otherwise, *operands)


@table(
    ("billion", repeat(jnp.sin, BILLION), (f(),), BILLION, "sin 1, 10^9 times"),
    ("unroll", repeat(jnp.sin, 64, unroll=4), (f(),), 64, "the same program: 64"),
    ("swap-odd", repeat(swap, BILLION + 1), ((f(), f()),), (BILLION // 2 + 1, BILLION // 2)),
    ("map-late", lambda xs: lax.map(lambda x: sines(x, 3), sines(xs, 4)), (f(10, 8),), 7, "4 + 3"),
    ("map-batched", lambda xs: lax.map(jnp.sin, xs, batch_size=5), (f(10),), 1),
    ("10^18+10^9", repeat(lambda c: jnp.cos(nested(BILLION)(c)), BILLION), (f(),), 10**18 + 10**9),
    ("10^27+1", lambda c: jnp.cos(nested(BILLION, BILLION, BILLION)(c)), (f(),), 10**27 + 1),
    ("in-a-map", lambda xs: lax.map(nested(10), xs), (f(1000),), 10, "rows side by side: 10"),
    ("no-work", lambda p, x, y: cond(p, lambda x, y: x, lambda x, y: y, x, y), (b(), f(), f()), 1),
    ("literals", lambda p: cond(p, lambda: 1.0, lambda: 2.0), (b(),), 1, "the index 1"),
    ("one-branch", lambda n, x: lax.switch(n, [lambda x: sines(x, 3)], x), (i(), f()), 3),
    ("captured", lambda p, x: cond(p, lambda: sines(x, 3), lambda: x), (b(), f()), 4),
    ("billion-in-cond", lambda p, x: cond(p, nested(BILLION), jnp.sin, x), (b(), f()), BILLION + 1),
)
def test_loops_and_branches(case):
    check(case)


def test_work_and_path_of_a_loop_count_every_turn():
    cost = check(Case("work", nested(5, 4), (f(8),), 20, "4 times 5 sines"))
    assert (cost.work, cost.bytes) == (20 * 8, 20 * 2 * 8 * 4)
    assert [(row.primitive, row.count, row.depth, row.work) for row in cost.critical_path] == [
        ("sin", 20, 20, 160)
    ]
    cost = check(Case("map", lambda xs: lax.map(lambda x: sines(x, 3), xs), (f(10, 8),), 3))
    assert cost.work == 10 * 3 * 8
    assert [(row.count, row.work) for row in cost.critical_path] == [(3, 24)]
