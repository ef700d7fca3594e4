"""Scans, which count as their unrolled programs, and branches."""

import jax.numpy as jnp
from jax import lax

from tests.depth.cases import Case, b, check, f, i, sines, table

BILLION = 10**9


def repeat(step, count, **options):
    """``carry -> step(carry)``, so many times, without inputs and results."""
    return lambda carry: lax.scan(
        lambda carry, _: (step(carry), None), carry, length=count, **options
    )[0]


def scan(step, **options):
    return lambda carry, xs: lax.scan(step, carry, xs, **options)


def before_and_after(count):
    """The carry gets one deeper each trip; 20 more for what each trip returns."""
    return lambda carry: lax.scan(
        lambda c, _: (c + 1, (sines(c, 20), sines(c + 1, 20), c)), carry, length=count
    )


def fibonacci(pair):
    return pair[1], pair[0] + pair[1]


def swap(pair):
    return jnp.sin(pair[1]), pair[0]


def rotate(triple):
    return triple[1], triple[2], jnp.sin(triple[0])


def with_constant(depth_of_constant, depth_of_carry, count):
    """``carry = sin(carry) + c``."""

    def program(carry, c):
        c = sines(c, depth_of_constant)
        return repeat(lambda carry: jnp.sin(carry) + c, count)(sines(carry, depth_of_carry))

    return program


def nested(*counts):
    """Sines, so many times so many times."""
    fn = jnp.sin
    for count in counts:
        fn = repeat(fn, count)
    return fn


@table(
    ("0", repeat(jnp.sin, 0), (f(),), 0, "the carry as it came"),
    ("1", repeat(jnp.sin, 1), (f(),), 1, "sin 1"),
    ("billion", repeat(jnp.sin, BILLION), (f(),), BILLION, "sin 1, 10^9 times"),
    ("late-start", lambda c: repeat(jnp.sin, 10)(sines(c, 5)), (f(),), 15, "5 + 10"),
    ("reverse", repeat(jnp.sin, 64, reverse=True), (f(),), 64, "sin 1, 64 times"),
    ("unroll", repeat(jnp.sin, 64, unroll=4), (f(),), 64, "the same program: 64"),
    ("fibonacci-64", repeat(fibonacci, 64), ((f(), f()),), (63, 64)),
    ("swap-odd", repeat(swap, BILLION + 1), ((f(), f()),), (BILLION // 2 + 1, BILLION // 2)),
    ("rotate", repeat(rotate, 8), ((f(), f(), f()),), (2, 3, 3)),
    ("side-by-side", repeat(lambda c: [sines(h, 2) for h in c], 10), ([f()] * 4,), (20,) * 4),
    ("const-late", with_constant(7, 0, 10), (f(), f()), 26),
    ("const-and-carry-late", with_constant(7, 6, 10), (f(), f()), 26),
    ("const-late-0", with_constant(7, 0, 0), (f(), f()), 0, "no trip reads the constant"),
)
def test_carries(case):
    check(case)


@table(
    ("ys", before_and_after(10), (f(),), (10, 29, 30, 9)),
    ("ys-0", before_and_after(0), (f(),), (0, 0, 0, 0), "no trip: nothing to wait for"),
    ("map", lambda xs: lax.map(lambda x: sines(x, 3), xs), (f(10, 8),), 3, "rows side by side: 3"),
    ("map-late", lambda xs: lax.map(lambda x: sines(x, 3), sines(xs, 4)), (f(10, 8),), 7, "4 + 3"),
    ("map-dot", lambda w, xs: lax.map(lambda x: w @ x, xs), (f(4, 8), f(10, 8)), 4),
    ("map-batched", lambda xs: lax.map(jnp.sin, xs, batch_size=5), (f(10),), 1),
    ("xs-worked-on", scan(lambda c, x: (c + sines(x, 2), None)), (f(), f(10)), 12),
    ("xs-passed-on", scan(lambda c, x: (x, c)), (f(), f(10)), (0, 0), "moves only"),
    ("tuple-xs", scan(lambda c, x: (c * x[0] + x[1], c)), (f(), (f(10), f(10))), (20, 18)),
)
def test_slices(case):
    check(case)


@table(
    ("4-of-5", nested(5, 4), (f(),), 20, "4 times 5 sines"),
    ("then-cos", repeat(lambda c: jnp.cos(nested(5)(c)), 4), (f(),), 24, "4 times 5 + 1"),
    ("10^18+10^9", repeat(lambda c: jnp.cos(nested(BILLION)(c)), BILLION), (f(),), 10**18 + 10**9),
    ("10^27+1", lambda c: jnp.cos(nested(BILLION, BILLION, BILLION)(c)), (f(),), 10**27 + 1),
    ("swap-inside", repeat(lambda p: repeat(swap, 3)(p), 5), ((f(), f()),), (8, 7)),
    ("in-a-map", lambda xs: lax.map(nested(10), xs), (f(1000),), 10, "rows side by side: 10"),
    ("inner-constants", repeat(lambda c: with_constant(0, 0, 3)(c, c), 4), (f(),), 24),
)
def test_nested_scans(case):
    check(case)


def cond(p, then, otherwise, *operands):
    return lax.cond(p, then, otherwise, *operands)


@table(
    ("deeper", lambda p, x: cond(p, jnp.sin, lambda x: sines(x, 4), x), (b(), f()), 5),
    ("operand-late", lambda p, x: cond(p, jnp.sin, jnp.cos, sines(x, 6)), (b(), f()), 7),
    ("index-late", lambda p, x: cond(sines(p, 5) > 0, jnp.sin, jnp.cos, x), (f(), f()), 8),
    ("no-work", lambda p, x, y: cond(p, lambda x, y: x, lambda x, y: y, x, y), (b(), f(), f()), 1),
    ("literals", lambda p: cond(p, lambda: 1.0, lambda: 2.0), (b(),), 1, "the index 1"),
    ("one-branch", lambda n, x: lax.switch(n, [lambda x: sines(x, 3)], x), (i(), f()), 3),
    ("captured", lambda p, x: cond(p, lambda: sines(x, 3), lambda: x), (b(), f()), 4),
)
def test_branches(case):
    check(case)


@table(
    ("scan-in-cond", lambda p, x: cond(p, nested(10), jnp.sin, x), (b(), f()), 11),
    ("billion-in-cond", lambda p, x: cond(p, nested(BILLION), jnp.sin, x), (b(), f()), BILLION + 1),
)
def test_loops_and_branches(case):
    check(case)


def test_work_and_path_of_a_loop_count_every_turn():
    cost = check(Case("work", nested(5, 4), (f(8),), 20, "4 times 5 sines"))
    assert cost.work == 20 * 8
    assert cost.bytes == 20 * 2 * 8 * 4
    assert [(row.primitive, row.count, row.depth, row.work) for row in cost.critical_path] == [
        ("sin", 20, 20, 160)
    ]
    cost = check(
        Case(
            "map",
            lambda xs: lax.map(lambda x: sines(x, 3), xs),
            (f(10, 8),),
            3,
            "rows side by side: 3",
        )
    )
    assert cost.work == 10 * 3 * 8
    assert [(row.count, row.work) for row in cost.critical_path] == [(3, 24)]
