"""Scans, which count as their unrolled programs, and branches."""

import time

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
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
    ("2", repeat(jnp.sin, 2), (f(),), 2, "sin 1 twice"),
    ("64", repeat(jnp.sin, 64), (f(),), 64, "sin 1, 64 times"),
    ("billion", repeat(jnp.sin, BILLION), (f(),), BILLION, "sin 1, 10^9 times"),
    ("late-start", lambda c: repeat(jnp.sin, 10)(sines(c, 5)), (f(),), 15, "5 + 10"),
    ("late-start-0", lambda c: repeat(jnp.sin, 0)(sines(c, 5)), (f(),), 5, "no trip: 5"),
    ("reverse", repeat(jnp.sin, 64, reverse=True), (f(),), 64, "sin 1, 64 times"),
    ("unroll", repeat(jnp.sin, 64, unroll=4), (f(),), 64, "the same program: 64"),
    (
        "fibonacci-63",
        repeat(fibonacci, 63),
        ((f(), f()),),
        (62, 63),
        "b_n = n; a_n = b_(n-1) = n - 1",
    ),
    (
        "fibonacci-64",
        repeat(fibonacci, 64),
        ((f(), f()),),
        (63, 64),
        "b_n = n; a_n = b_(n-1) = n - 1",
    ),
    (
        "fibonacci-late",
        lambda p: repeat(fibonacci, 64)((sines(p[0], 9), p[1])),
        ((f(), f()),),
        (72, 73),
        "b_1 = 9 + 1",
    ),
    ("swap-10", repeat(swap, 10), ((f(), f()),), (5, 5), "a sine every second trip: 10 / 2"),
    (
        "swap-odd",
        repeat(swap, BILLION + 1),
        ((f(), f()),),
        (BILLION // 2 + 1, BILLION // 2),
        "(n + 1) / 2 and (n - 1) / 2",
    ),
    (
        "rotate",
        repeat(rotate, 8),
        ((f(), f(), f()),),
        (2, 3, 3),
        "a sine every third trip: floor((n + 0, 1, 2) / 3)",
    ),
    (
        "rotate-billion",
        repeat(rotate, BILLION),
        ((f(), f(), f()),),
        (333333333, 333333333, 333333334),
        "floor((n + 0, 1, 2) / 3), n = 10^9",
    ),
    (
        "side-by-side",
        repeat(lambda c: [sines(h, 2) for h in c], 10),
        ([f()] * 4,),
        (20,) * 4,
        "four heads, none waits: 10 * 2",
    ),
    (
        "two-speeds",
        repeat(lambda c: (sines(c[0], 3), jnp.sin(c[1]) + c[0]), 10),
        ((f(), f()),),
        (30, 28),
        "a_n = 3 n; b_1 = 2, and b_n = max(b_(n-1) + 2, a_(n-1) + 1) = 3 n - 2",
    ),
    (
        "pytree",
        repeat(lambda c: {"a": jnp.sin(c["b"]), "b": c["a"]}, 10),
        ({"a": f(), "b": f()},),
        (5, 5),
        "as swap",
    ),
    (
        "const-late",
        with_constant(7, 0, 10),
        (f(), f()),
        26,
        "first trip max(1, 7) + 1 = 8, then 9 * 2",
    ),
    ("const-early", with_constant(1, 0, 10), (f(), f()), 20, "never late: 10 * 2"),
    (
        "const-and-carry-late",
        with_constant(7, 6, 10),
        (f(), f()),
        26,
        "6 + sin 1 = 7, as late as 7: + 1 = 8, then 18",
    ),
    ("const-late-0", with_constant(7, 0, 0), (f(), f()), 0, "no trip reads the constant"),
    (
        "const-at-the-end",
        lambda c, k: repeat(lambda c: (jnp.sin(c[0]), c[0] * sines(k, 30)), 10)((c, c)),
        (f(), f()),
        (10, 31),
        "30 beside 9, + mul 1",
    ),
)
def test_carries(case):
    check(case)


@table(
    (
        "ys",
        before_and_after(10),
        (f(),),
        (10, 29, 30, 9),
        "carry 10; before the last trip 9: + 20; after it 10: + 20; 9",
    ),
    ("ys-1", before_and_after(1), (f(),), (1, 20, 21, 0), "one trip from 0: 1, 0 + 20, 1 + 20, 0"),
    ("ys-0", before_and_after(0), (f(),), (0, 0, 0, 0), "no trip: nothing to wait for"),
    (
        "ys-billion",
        before_and_after(BILLION),
        (f(),),
        (BILLION, BILLION + 19, BILLION + 20, BILLION - 1),
        "n, n - 1 + 20, n + 20, n - 1",
    ),
    ("map", lambda xs: lax.map(lambda x: sines(x, 3), xs), (f(10, 8),), 3, "rows side by side: 3"),
    ("map-late", lambda xs: lax.map(lambda x: sines(x, 3), sines(xs, 4)), (f(10, 8),), 7, "4 + 3"),
    (
        "map-dot",
        lambda w, xs: lax.map(lambda x: w @ x, xs),
        (f(4, 8), f(10, 8)),
        4,
        "rows side by side: 1 + 3",
    ),
    (
        "map-none",
        lambda xs: lax.map(lambda x: sines(x, 3), xs),
        (f(0, 8),),
        0,
        "no row: nothing to wait for",
    ),
    (
        "map-batched",
        lambda xs: lax.map(jnp.sin, xs, batch_size=5),
        (f(10),),
        1,
        "batches side by side: 1",
    ),
    (
        "xs-late",
        lambda c, xs: scan(lambda c, x: (c + x, None))(c, sines(xs, 7))[0],
        (f(), f(10)),
        17,
        "7 + add 1, then 9",
    ),
    (
        "xs-worked-on",
        scan(lambda c, x: (c + sines(x, 2), None)),
        (f(), f(10)),
        12,
        "first trip max(0, 2) + 1 = 3, then 9",
    ),
    (
        "xs-and-ys",
        lambda c, xs: scan(lambda c, x: (c + x, jnp.sin(x)))(c, sines(xs, 7)),
        (f(), f(10)),
        (17, 8),
        "as xs-late; slices side by side: 7 + 1",
    ),
    (
        "reverse-ys",
        lambda c, xs: scan(lambda c, x: (c + x, c), reverse=True)(c, xs),
        (f(), f(10)),
        (10, 9),
        "10 adds; before the last 9",
    ),
    ("xs-passed-on", scan(lambda c, x: (x, c)), (f(), f(10)), (0, 0), "moves only"),
    (
        "delay-line",
        scan(lambda c, x: ((jnp.sin(x), c[0]), jnp.sin(c[1]))),
        ((f(), f()), f(10)),
        (1, 1, 2),
        "a slice is forgotten after 2 trips: sin 1, then + 1",
    ),
    (
        "heads-on-carry",
        scan(lambda c, x: ([h + x for h in c], None)),
        ([f()] * 8, f(10)),
        (10,) * 8,
        "8 heads side by side: 10",
    ),
    (
        "tuple-xs",
        scan(lambda c, x: (c * x[0] + x[1], c)),
        (f(), (f(10), f(10))),
        (20, 18),
        "mul 1 + add 1 each trip; before the last 18",
    ),
    (
        "huge",
        lambda c: lax.scan(lambda c, _: (jnp.sin(c), c), c, length=BILLION),
        (f(1000),),
        (BILLION, BILLION - 1),
        "nothing is allocated: n, n - 1",
    ),
)
def test_slices(case):
    check(case)


@table(
    ("4-of-5", nested(5, 4), (f(),), 20, "4 times 5 sines"),
    ("then-cos", repeat(lambda c: jnp.cos(nested(5)(c)), 4), (f(),), 24, "4 times 5 + 1"),
    ("10^18", nested(BILLION, BILLION), (f(),), 10**18, "10^9 * 10^9, which no float64 counts"),
    (
        "10^18+10^9",
        repeat(lambda c: jnp.cos(nested(BILLION)(c)), BILLION),
        (f(),),
        10**18 + 10**9,
        "10^9 times 10^9 + 1",
    ),
    (
        "10^18+1",
        lambda c: jnp.cos(nested(BILLION, BILLION)(c)),
        (f(),),
        10**18 + 1,
        "10^18 and one: no float is involved",
    ),
    ("10^27", nested(BILLION, BILLION, BILLION), (f(),), 10**27, "beyond 64 bits"),
    (
        "10^27+1",
        lambda c: jnp.cos(nested(BILLION, BILLION, BILLION)(c)),
        (f(),),
        10**27 + 1,
        "beyond 64 bits, and one",
    ),
    (
        "10^36-by-output",
        lambda c: (nested(*[BILLION] * 4)(c), jnp.sin(c), c),
        (f(),),
        (10**36, 1, 0),
        "each output by itself",
    ),
    (
        "swap-inside",
        repeat(lambda p: repeat(swap, 3)(p), 5),
        ((f(), f()),),
        (8, 7),
        "15 trips: (n + 1) / 2 and (n - 1) / 2",
    ),
    (
        "map-inside",
        lambda c, xs: repeat(lambda c: lax.map(lambda x: x * c, xs).sum(), 5)(c),
        (f(), f(8)),
        20,
        "5 times mul 1 + sum 3",
    ),
    ("in-a-map", lambda xs: lax.map(nested(10), xs), (f(1000),), 10, "rows side by side: 10"),
    (
        "inner-constants",
        repeat(lambda c: with_constant(0, 0, 3)(c, c), 4),
        (f(),),
        24,
        "3 trips of sin 1 + add 1, 4 times",
    ),
)
def test_nested_scans(case):
    check(case)


def cond(p, then, otherwise, *operands):
    return lax.cond(p, then, otherwise, *operands)


@table(
    (
        "deeper",
        lambda p, x: cond(p, jnp.sin, lambda x: sines(x, 4), x),
        (b(), f()),
        5,
        "cast of the predicate 1, then the deeper 4",
    ),
    (
        "operand-late",
        lambda p, x: cond(p, jnp.sin, jnp.cos, sines(x, 6)),
        (b(), f()),
        7,
        "max(index 1, 6) + 1",
    ),
    (
        "index-late",
        lambda p, x: cond(sines(p, 5) > 0, jnp.sin, jnp.cos, x),
        (f(), f()),
        8,
        "5 + gt 1 + cast 1, then 1",
    ),
    (
        "no-work",
        lambda p, x, y: cond(p, lambda x, y: x, lambda x, y: y, x, y),
        (b(), f(), f()),
        1,
        "the index 1",
    ),
    ("literals", lambda p: cond(p, lambda: 1.0, lambda: 2.0), (b(),), 1, "the index 1"),
    (
        "switch",
        lambda n, x: lax.switch(n, [jnp.sin, lambda x: sines(x, 3), jnp.cos], x),
        (i(), f()),
        4,
        "clamp of the index 1, deepest 3",
    ),
    (
        "one-branch",
        lambda n, x: lax.switch(n, [lambda x: sines(x, 3)], x),
        (i(), f()),
        3,
        "no choice, no index: 3",
    ),
    (
        "by-output",
        lambda p, x, y, z: cond(
            p, lambda x, y, z: (jnp.sin(x), y), lambda x, y, z: (x, z), x, sines(y, 5), z
        ),
        (b(), f(), f(), f()),
        (2, 5),
        "index 1 + sin 1; max(index 1, 5, 0)",
    ),
    (
        "by-output-other",
        lambda p, x, y, z: cond(
            p, lambda x, y, z: (jnp.sin(x), y), lambda x, y, z: (x, z), sines(x, 5), y, z
        ),
        (b(), f(), f(), f()),
        (6, 1),
        "5 + sin 1; the index 1, for no branch makes it from x",
    ),
    (
        "by-output-index-late",
        lambda p, x, y, z: cond(
            sines(p, 5) > 0, lambda x, y, z: (jnp.sin(x), y), lambda x, y, z: (x, z), x, y, z
        ),
        (f(), f(), f(), f()),
        (8, 7),
        "index 7 + sin 1; index 7",
    ),
    (
        "handed-around",
        lambda p, x, y: cond(
            sines(p, 5) > 0, lambda x, y: (jnp.sin(x), y), lambda x, y: (x, y), x, y
        ),
        (f(), f(), f()),
        (8, 0),
        "index 7 + sin 1; y is the same whatever the branch, and jax takes it out",
    ),
    (
        "crossed",
        lambda p, x, y: cond(p, lambda x, y: (x, y), lambda x, y: (y, x), sines(x, 5), y),
        (b(), f(), f()),
        (5, 5),
        "either output may be x: 5",
    ),
    (
        "different-operands",
        lambda p, x, y: cond(
            p, lambda x, y: sines(x, 2), lambda x, y: sines(y, 4), sines(x, 9), sines(y, 3)
        ),
        (b(), f(), f()),
        11,
        "max(9 + 2, 3 + 4)",
    ),
    (
        "nested",
        lambda p, x: cond(p, lambda x: cond(x > 0, jnp.sin, jnp.cos, x), jnp.tan, x),
        (b(), f()),
        4,
        "index 1; gt 2, cast 3, sin 4",
    ),
    (
        "captured",
        lambda p, x: cond(p, lambda: sines(x, 3), lambda: x),
        (b(), f()),
        4,
        "index 1 + 3",
    ),
)
def test_branches(case):
    check(case)


@table(
    (
        "scan-in-cond",
        lambda p, x: cond(p, nested(10), jnp.sin, x),
        (b(), f()),
        11,
        "index 1 + 10 trips",
    ),
    (
        "billion-in-cond",
        lambda p, x: cond(p, nested(BILLION), jnp.sin, x),
        (b(), f()),
        BILLION + 1,
        "index 1 + 10^9",
    ),
    (
        "cond-in-scan",
        scan(lambda c, x: (cond(x > 0, lambda c: sines(c, 3), jnp.sin, c), None)),
        (f(), f(10)),
        32,
        "all indices side by side gt 1, cast 2; then 10 times 3",
    ),
    (
        "cond-on-carry",
        repeat(lambda c: cond(c > 0, lambda c: sines(c, 3), jnp.sin, c), 10),
        (f(),),
        50,
        "each trip gt 1, cast 1, sines 3",
    ),
    (
        "half-of-the-carry",
        repeat(
            lambda s: cond(
                s[0] > 0, lambda a, c: (a, jnp.sin(c)), lambda a, c: (jnp.float32(0), c), *s
            ),
            10,
        ),
        ((f(), f()),),
        (20, 21),
        "a waits for its own test, gt 1 + cast 1, each trip: 2 n; b_n = max(b_(n-1), 2 n) + 1 = 2 n + 1",
    ),
)
def test_loops_and_branches(case):
    check(case)


def plain(step, count):
    """The same program, unrolled."""

    def program(carry):
        for _ in range(count):
            carry = step(carry)
        return carry

    return program


@table(
    ("vmap", jax.vmap(nested(10)), (f(7),), 10, "rows side by side: 10"),
    (
        "grad",
        jax.grad(nested(10)),
        (f(),),
        20,
        "c_9 is at 9, its cos at 10; back through 10 products",
    ),
    (
        "grad-billion",
        jax.grad(nested(BILLION)),
        (f(),),
        2 * BILLION,
        "c_(n-1), its cos n; back through n products",
    ),
    (
        "grad-unrolled",
        jax.grad(plain(jnp.sin, 10)),
        (f(),),
        20,
        "c_9 is at 9, its cos at 10; back through 10 products",
    ),
    (
        "jvp",
        lambda c: jax.jvp(nested(10), (c,), (c,)),
        (f(),),
        (10, 11),
        "c_9 is at 9, its cos 10, the last product 11",
    ),
    (
        "grad-of-map",
        jax.grad(lambda xs: lax.map(jnp.sin, xs).sum()),
        (f(10),),
        2,
        "cos 1, times 1.0: 2, rows side by side",
    ),
    (
        "vmap-of-cond",
        jax.vmap(lambda n, x: lax.switch(n, [jnp.sin, lambda x: x], x)),
        (i(8), f(8)),
        5,
        "clamp 1, eq 2 and select 3 (other rows may not be safe to work on), sin 4, the choice 5",
    ),
)
def test_transformed_loops(case):
    check(case)


@pytest.mark.parametrize(
    "step",
    [jnp.sin, jnp.exp, lambda c: jnp.tanh(c) * c, lambda c: c * c],
    ids=["sin", "exp", "gate", "square"],
)
@pytest.mark.parametrize(
    "around",
    [lambda fn: fn, jax.grad, jax.value_and_grad],
    ids=["forward", "grad", "value-and-grad"],
)
def test_a_scan_is_its_unrolled_program(step, around):
    for count in (1, 2, 7):
        rolled, unrolled = (
            depth.by_output(around(make(step, count)), f()) for make in (repeat, plain)
        )
        assert rolled == unrolled


def test_a_billion_turns_answer_at_once():
    program = jax.make_jaxpr(before_and_after(BILLION))(f())
    depth.compute_depth(program)
    start = time.perf_counter()
    assert depth.compute_depth(program) == BILLION + 20
    assert time.perf_counter() - start < 0.5


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
