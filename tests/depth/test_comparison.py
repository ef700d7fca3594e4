"""Two programs side by side.

Ratios, the table, times where a device is given, and what is not known of either.
"""

import dataclasses

import jax.numpy as jnp
import pytest
from jax import lax

import depth
from depth.report import seconds
from tests.depth.cases import f, sines

# Work takes half a second for each operation, and all else no time but launches and loops.
ROUND = depth.Device(
    "round",
    call_latency=2.0,
    kernel_latency=1.0,
    loop_latency=3.0,
    turn_latency=5.0,
    rates={"float32": 2.0},
    vector_rates={"arithmetic": 2.0, "transcendental": 2.0, "move": 1e99},
    bandwidth=1e99,
    memory=1e9,
)
X = f(8)


def never(*args):
    raise AssertionError("nothing may be traced")


def one_by_one(x):
    """Eight steps of a sum: depth 8, work 8 (the first adds to zero)."""
    return lax.scan(lambda s, x: (s + x, None), jnp.zeros((), x.dtype), x)[0]


def at_once(x):
    """A reduction of eight: depth 3, work 7."""
    return lax.reduce_sum(x, (0,))


def until(x):
    return lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x)


def test_costs_and_ratios():
    got = depth.compare(one_by_one, at_once, X)
    assert got.sequential == depth.analyze(one_by_one, X)
    assert got.parallel == depth.analyze(at_once, X)
    assert (got.sequential.depth, got.parallel.depth) == (8, 3)
    assert (got.sequential.work, got.parallel.work) == (8, 7)
    assert got.depth_speedup == 8 / 3
    assert got.work_ratio == 7 / 8
    assert got.exact


def test_without_a_device_there_are_no_times():
    got = depth.compare(one_by_one, at_once, X)
    assert (got.device, got.sequential_seconds, got.parallel_seconds, got.predicted_speedup) == (
        None,
    ) * 4
    assert [line.split()[0] for line in str(got).splitlines()] == [
        "sequential",
        "depth",
        "work",
        "bytes",
        "traffic",
    ]


def test_times_are_the_predicted_ones():
    got = depth.compare(one_by_one, at_once, X, device=ROUND)
    assert got.device is ROUND
    assert got.sequential_seconds == 2 + 8 * (
        3 + 1 + 1 / 2
    )  # the call; 8 turns, each a loop step, a launch, an addition
    assert got.parallel_seconds == 2 + 1 + 7 / 2  # the call, the launch, 7 additions
    assert got.predicted_speedup == 38 / 6.5
    assert got.sequential_seconds == depth.predict(got.sequential, ROUND)


def test_a_device_by_its_name():
    got = depth.compare(one_by_one, at_once, f(1024), device="H100")
    assert got.device is depth.devices["H100"]
    assert got.predicted_speedup > 10


def test_a_program_with_itself():
    got = depth.compare(lambda x: sines(x, 3), lambda x: sines(x, 3), X, device="V100")
    assert (got.depth_speedup, got.work_ratio, got.predicted_speedup) == (1, 1, 1)


def test_a_slower_one():
    got = depth.compare(at_once, one_by_one, X, device=ROUND)
    assert got.depth_speedup == 3 / 8
    assert got.predicted_speedup == 6.5 / 38


def test_the_table():
    """Bytes: eight times a sum of 4 + 4 bytes into 4 and the slices; 8 in and 1 out."""
    got = depth.compare(one_by_one, at_once, X, device=ROUND)
    lines = [line.split(maxsplit=3) for line in str(got).splitlines()]
    assert lines == [
        ["sequential", "parallel"],
        ["depth", "8", "3", "2.67x less"],
        ["work", "8", "7", "0.875x as much"],
        ["bytes", "96", "36"],
        ["traffic", "96", "36"],  # one kernel in each step, and one for the reduction
        ["time", "38", "s", "6.5 s  5.85x as fast, predicted for round"],
    ]


def test_columns_are_aligned():
    lines = str(depth.compare(one_by_one, at_once, f(10**6), device=ROUND)).splitlines()
    assert "1,000,000" in lines[1]
    ends = [lines[0].index("sequential") + len("sequential"), len(lines[0])]
    assert all(line[end - 1] != " " for line in lines for end in ends)
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) < 100


def test_what_is_not_known_of_either_is_listed_once():
    got = depth.compare(until, lambda x: lax.sin(until(x)), X)
    assert not got.exact
    text = str(got)
    assert text.splitlines()[1].split()[1:3] == [">=", str(got.sequential.depth)]
    assert text.count("a lower bound, since") == 1
    assert text.count("while at test_comparison.py") == 1
    assert not depth.compare(until, lax.sin, X).exact
    assert not depth.compare(lax.sin, until, X).exact
    assert "while at test_comparison.py" in str(depth.compare(lax.sin, until, X, device=ROUND))
    assert "lower bound" not in str(depth.compare(lax.sin, lax.cos, X))


def test_trip_counts_go_to_both():
    got = depth.compare(until, lambda x: until(until(x)), X, trip_counts=7, device=ROUND)
    turn = 5 + (1 + 1 / 2) + (1 + 8 / 2)  # the wait; a comparison; eight products
    assert got.sequential_seconds == 2 + 7 * turn
    assert got.parallel_seconds == 2 + 14 * turn
    assert "lower bound" not in str(depth.compare(one_by_one, at_once, X, trip_counts=7))


def line_of(loop):
    (unknown,) = depth.analyze(loop, X).unknown
    return f"test_comparison.py:{unknown.location.line}"


def test_trip_counts_by_line_may_name_a_loop_of_either():
    counts = {line_of(until): 7}
    both = depth.compare(until, until, X, trip_counts=counts)
    assert both.sequential.work == depth.analyze(until, X, trip_counts=7).work
    for programs in ((until, lax.sin), (lax.sin, until)):
        got = depth.compare(*programs, X, trip_counts=counts)
        assert {got.sequential.work, got.parallel.work} == {both.sequential.work, 8}


def test_trip_counts_for_a_loop_of_neither_are_refused():
    with pytest.raises(ValueError, match=r"nowhere\.py:3"):
        depth.compare(until, lax.sin, X, trip_counts={"nowhere.py:3": 7})


@pytest.mark.parametrize("device", ["H300", 3, {}], ids=repr)
def test_an_unknown_device_is_refused_before_anything_is_traced(device):
    with pytest.raises(ValueError, match=r"device must be a depth\.Device or one of"):
        depth.compare(never, never, X, device=device)


@pytest.mark.parametrize(
    "programs", [(3, lax.sin), (lax.sin, None)], ids=["the first", "the second"]
)
def test_what_is_no_function_is_refused(programs):
    with pytest.raises(TypeError, match="fn must be a function"):
        depth.compare(*programs, X)


def identity(x):
    return x


def test_programs_without_depth():
    assert (
        depth.compare(lambda x: sines(x, 3), identity, X).depth_speedup == 3
    )  # as against one operation
    assert depth.compare(identity, lambda x: sines(x, 3), X).depth_speedup == 0
    same = depth.compare(identity, identity, X, device="H100")
    assert (same.depth_speedup, same.work_ratio, same.predicted_speedup) == (1, 1, 1)


def test_programs_without_time():
    free = ROUND.replace(call_latency=0.0)
    assert depth.compare(lax.sin, identity, X, device=free).predicted_speedup == float("inf")
    assert str(depth.compare(identity, identity, X, device=free))


def test_a_comparison_is_a_value():
    first, second = (depth.compare(one_by_one, at_once, X, device=ROUND) for _ in range(2))
    assert first == second
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.device = None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"),
        (2e-9, "2 ns"),
        (1.234e-7, "123 ns"),
        (1.5e-6, "1.5 us"),
        (1e-3, "1 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (999, "999 s"),
    ],
)
def test_times_have_units(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    "value", [0.9996, 9.997e-4, 9.999e-7], ids=["almost 1 s", "almost 1 ms", "almost 1 us"]
)
def test_times_need_no_exponent(value):
    assert "e" not in seconds(value)
