"""While loops: trips that the program proves, that the caller gives, that nobody knows.

Each trip starts after its predicate, and the results wait for the last one.  With a predicate of
depth 1 and a counter, trip t starts at 2 t + 1; after n trips the counter is at 2 n, the last
predicate at 2 n + 1.  See the derivations below.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy import int8, int32, uint8, uint32

import depth
from depth.jaxprs import Program
from depth.known import LARGEST, Known
from tests.depth.cases import Case, check, f, i, sines, table


def loop(more, step, start, body=jnp.sin, dtype="int32"):
    """``while more(i): i, x = step(i), body(x)``: from x to both."""

    def program(x):
        first = lax.full((), start, dtype)
        return lax.while_loop(lambda s: more(s[0]), lambda s: (step(s[0]), body(s[1])), (first, x))

    return program


def up(trips, body=jnp.sin):
    return loop(lambda n: n < trips, lambda n: n + 1, 0, body)


def bounded(body=jnp.sin):
    """The bound is an operand: ``n, x -> x``."""
    return lambda n, x: lax.fori_loop(0, n, lambda _, x: body(x), x)


def bound_in_state(x):
    def body(state):
        n, bound, x = state
        return n + 2, bound, jnp.sin(x)

    return lax.while_loop(lambda s: s[0] <= s[1], body, (0, 10, x))


def other_counter(x):
    return lax.while_loop(
        lambda s: s[1] < 5, lambda s: (s[0] * 2, s[1] + 1, sines(s[2], 2)), (1, 0, x)
    )


def bound_cut_short(x):
    """The bound loses its higher bits after one trip."""
    body = lambda s: (s[0] + 1, s[1].astype(jnp.int8).astype(jnp.int32), jnp.sin(s[2]))  # noqa: E731
    return lax.while_loop(lambda s: s[0] < s[1], body, (jnp.int32(0), jnp.int32(300), x))


def test_a_bound_that_a_trip_changes_is_not_proven():
    assert not depth.analyze(bound_cut_short, f()).exact


called = jax.jit(bounded())


@table(
    ("lt", up(10), (f(),), (21, 21), "10 trips: predicate at 2 * 10 + 1, which both wait for"),
    ("two-adds", loop(lambda n: n < 10, lambda n: n + 1 + 1, 0), (f(),), (16, 16)),
    ("unsigned", loop(lambda n: n > 0, lambda n: n - 1, 10, dtype="uint8"), (f(),), (21, 21)),
    ("to-the-edge", loop(lambda n: n < 127, lambda n: n + 1, 117, dtype="int8"), (f(),), (21, 21)),
    ("many", up(2**31 - 1), (f(),), (2**32 - 1, 2**32 - 1), "n = 2^31 - 1 trips: 2 n + 1"),
    ("bound-in-state", bound_in_state, (f(),), (13, 13, 13)),
    ("other-counter", other_counter, (f(),), (11, 11, 11)),
    ("known-operands", lambda x: (called(3, x), called(5, x)), (f(),), (7, 11)),
    ("known-twice-inside", lambda x: jax.jit(lambda n, x: called(n, x))(5, x), (f(),), 11),
    ("in-scan", lambda x: lax.scan(lambda x, _: (up(10)(x)[1], None), x, length=4)[0], (f(),), 51),
    ("vmap", jax.vmap(lambda x: up(10)(x)[1]), (f(7),), 21),
    ("jvp", lambda x: jax.jvp(lambda x: up(10)(x)[1], (x,), (x,)), (f(),), (21, 21)),
)
def test_proven(case):
    check(case)
    check(case, trip_counts=99)  # is for loops that do not say it themselves


def late_bound(n, x):
    for _ in range(5):
        n = n + 1
    return lax.while_loop(
        lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1])), (jnp.int32(0), x)
    )


def until_large(x):
    return lax.while_loop(lambda x: jnp.sum(x) < 5, lambda x: x * 2, x)


def until_two_large(x, y):
    first = lax.while_loop(lambda x: x < 5, jnp.sin, x)
    second = lax.while_loop(lambda y: y < 5, lambda y: sines(y, 2), y)
    return first, second


FILE, LINE = "tests/depth/test_whiles.py", inspect.getsourcelines(until_two_large)[1]
FIRST, SECOND = f"{FILE}:{LINE + 1}", f"test_whiles.py:{LINE + 2}"


X = (i(), f())
LARGE = f"{FILE}:{inspect.getsourcelines(until_large)[1] + 1}"
GIVEN = [
    (bounded(), X, 10, 21, "2 * 10 + 1"),
    (bounded(), X, 0, 1, "the predicate"),
    (bounded(lambda x: sines(x, 3)), X, 10**9, 3 * 10**9 + 1, "after a predicate, 3 each trip"),
    (bounded(), X, 10**27, 2 * 10**27 + 1, "beyond 64 bits"),
    (late_bound, X, 4, (14, 14), "first predicate at 5 + 1, then 2 each trip: 6 + 2 * 4"),
    (until_large, (f(4),), 10, 43, "each trip sum 2 + lt 1 + mul 1; the last predicate 3"),
    (until_large, (f(4),), {LARGE: 2}, 11, "4 * 2 + 3"),
    (until_two_large, (f(), f()), 10, (21, 31), "lt 1 + sin 1 each, + 1; lt 1 + sines 2, + 1"),
    (until_two_large, (f(), f()), {FIRST: 10, SECOND: 20}, (21, 61), "2 * 10 + 1; 3 * 20 + 1"),
]


@pytest.mark.parametrize(("program", "args", "trips", "expected", "why"), GIVEN)
def test_given(program, args, trips, expected, why):
    check(Case("given", program, args, expected, why), trip_counts=trips)


def test_a_mapping_may_leave_a_loop_unknown():
    cost = depth.analyze(until_two_large, f(), f(), trip_counts={FIRST: 10})
    assert cost.by_output[0] == 21
    assert not cost.exact
    assert [(unknown.primitive, unknown.location.line) for unknown in cost.unknown] == [
        ("while", LINE + 2)
    ]


def collatz(n):
    return lax.while_loop(lambda n: n != 1, lambda n: jnp.where(n % 2 == 0, n // 2, 3 * n + 1), n)


UNKNOWN = [
    (until_large, f(4)),
    (bounded(), i(), f()),
    (collatz, i()),
    (loop(lambda n: n < 10, lambda n: n * 2, 1), f()),
    (loop(lambda n: n < 1, lambda n: n + 0.1, 0, dtype="float32"), f()),
    (lambda x: lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1] + 1), (0, x)), i()),
    (lambda n, x: loop(lambda i: i < 9, lambda i: i + n, 0)(x), i(), f()),
    (lambda n, x: loop(lambda i: i < 9, lambda i: i + 1, n)(x), i(), f()),
    (loop(lambda n: n < 10, lambda n: n + 0, 0), f()),
    (loop(lambda n: n < 10, lambda n: n - 1, 0), f()),
    (loop(lambda n: n != 10, lambda n: n + 3, 0), f()),
    (loop(lambda n: n != 10, lambda n: n - 1, 0), f()),
    (loop(lambda n: n >= 0, lambda n: n - 1, 9, dtype="uint8"), f()),
    (loop(lambda n: n < 127, lambda n: n + 2, 0, dtype="int8"), f()),
    (loop(lambda n: True, lambda n: n + 1, 0), f()),
]


@pytest.mark.parametrize("row", UNKNOWN, ids=range(len(UNKNOWN)))
def test_unknown_turns_are_a_lower_bound(row):
    program, *args = row
    cost = depth.analyze(program, *args)
    assert not cost.exact
    assert {unknown.primitive for unknown in cost.unknown} == {"while"}
    assert "trip_counts" in cost.unknown[0].reason
    assert ">=" in str(cost)
    assert cost.unknown[0].location.file.endswith("test_whiles.py")
    known = depth.analyze(program, *args, trip_counts=7)
    assert known.exact
    assert cost.depth <= known.depth


OVERFLOW = [  # operations of a predicate and of a counter, the counter's start
    (lambda n: n + int8(100) < int8(127), lambda n: n + int8(1), 2, 1, int8(50)),
    (lambda n: n - int8(100) < int8(20), lambda n: n + int8(1), 2, 1, int8(-100)),
    (lambda n: n < int8(100), lambda n: n + int8(100) + int8(100), 1, 2, int8(0)),
    (lambda n: n - uint8(10) < uint8(20), lambda n: n + uint8(1), 2, 1, uint8(5)),
    (lambda n: n.astype("uint32") < uint32(10), lambda n: n + int32(1), 2, 1, int32(-5)),
    (lambda n: n.astype("int8") < int8(120), lambda n: n + int32(50), 2, 1, int32(0)),
    (lambda n: n.astype("int8") < int8(100), lambda n: n + int32(50), 2, 1, int32(0)),
    (lambda n: n != int8(3), lambda n: n + int8(3), 1, 1, int8(1)),
    (lambda n: n < int8(127), lambda n: n + int8(2), 1, 1, int8(0)),
    (lambda n: n > uint8(0), lambda n: n - uint8(2), 1, 1, uint8(5)),
]


@pytest.mark.parametrize(("more", "step", "tests", "steps", "n"), OVERFLOW, ids=range(10))
def test_overflow_is_never_claimed(more, step, tests, steps, n):
    trips, start = 0, n
    with np.errstate(over="ignore"):
        while trips < 1000 and more(n):
            trips, n = trips + 1, step(n)
    cost = depth.analyze(loop(more, step, start, dtype=start.dtype), f())
    if cost.exact:  # `tests` operations for each predicate, `steps` and a sine for each trip
        assert cost.work == trips * (tests + steps + 1) + tests


@pytest.mark.parametrize(
    ("value", "dtype", "trips"), [(5, "uint8", 5), (300, "int8", 44), (-1, "uint8", 255)]
)
def test_known_operands_are_cast_as_the_program_casts(value, dtype, trips):
    @jax.jit
    def program(n, x):
        return lax.fori_loop(np.dtype(dtype).type(0), n.astype(dtype), lambda _, x: jnp.sin(x), x)

    cost = depth.analyze(lambda x: program(value, x), f())
    # The cast, then 2 a trip, then the predicate.
    assert not cost.exact or cost.depth == 2 * trips + 2


@pytest.mark.parametrize(
    ("trip_counts", "error"),
    [
        (True, TypeError),
        ("3", TypeError),
        (2.5, TypeError),
        ([3], TypeError),
        (-1, ValueError),
        ({FIRST: -1}, ValueError),
        ({FIRST: 1.5}, ValueError),
        ({f"{FILE}:{LINE}": 3}, ValueError),
        ({f"other.py:{LINE + 1}": 3}, ValueError),
        ({"nonsense": 3}, ValueError),
    ],
    ids=str,
)
def test_bad_trip_counts(trip_counts, error):
    with pytest.raises(error, match=r"trip_counts|trips"):
        depth.analyze(until_two_large, f(), f(), trip_counts=trip_counts)


def test_a_line_that_does_not_match_is_told_which_would():
    with pytest.raises(ValueError, match=rf"test_whiles.py:{LINE + 1}.*test_whiles.py:{LINE + 2}"):
        depth.analyze(until_two_large, f(), f(), trip_counts={"test_whiles.py:1": 3})


def test_all_turns_are_on_the_path():
    cost = depth.analyze(until_large, f(4), trip_counts=10)
    assert {(row.primitive, row.count, row.depth) for row in cost.critical_path} == {
        ("reduce_sum", 11, 22),
        ("lt", 11, 11),
        ("mul", 10, 10),
    }
    assert (
        cost.work == 10 * (3 + 1 + 4) + 3 + 1
    )  # sum over 4, compare, 4 products; the last predicate


def test_a_bound_that_the_program_computes_from_nothing():
    def run(x):
        bound = 2 * lax.iota("int32", 4)[3] - 1
        return lax.fori_loop(0, bound, lambda i, x: jnp.sin(x), x)

    found = depth.analyze(run, 1.0)
    assert not found.unknown
    assert found.depth >= 5


@pytest.mark.parametrize(
    ("size", "equations", "is_known"),
    [(1, 65, True), (1, 66, False), (LARGEST, 2, True), (LARGEST + 1, 2, False)],
)
def test_integers_are_known_up_to_a_limit(size, equations, is_known):
    def count():
        n = lax.iota("int32", size)
        for _ in range(equations - 1):
            n = n + 1
        return n

    program = Program.of(jax.make_jaxpr(count)())
    assert (Known(program).value(program.outvars[0]) is not None) == is_known
