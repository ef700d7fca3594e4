"""Two programs side by side: ratios, the table, times on a device, what is not known of either."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
from depth.loops import named_loop
from depth.platforms import platform
from depth.report import seconds
from tests.depth.cases import f, sines

# Work takes half a second for each operation, and all else no time but launches and loops.
ROUND = depth.Device(
    "round",
    call_latency=2.0,
    kernel_latency=1.0,
    loop_latency=3.0,
    trip_latency=5.0,
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


def test_times_are_the_predicted_ones():
    got = depth.compare(one_by_one, at_once, X, device=ROUND)
    assert got.device is ROUND
    # The call; 8 trips, each a loop step, a launch, an addition.
    assert got.sequential_seconds == 2 + 8 * (3 + 1 + 1 / 2)
    assert got.parallel_seconds == 2 + 1 + 7 / 2  # the call, the launch, 7 additions
    assert got.predicted_speedup == 38 / 6.5
    assert got.sequential_seconds == depth.predict(got.sequential, ROUND)


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


def test_what_is_not_known_of_either_is_listed_once():
    got = depth.compare(until, lambda x: lax.sin(until(x)), X)
    assert not got.exact
    text = str(got)
    assert text.splitlines()[1].split()[1:3] == [">=", str(got.sequential.depth)]
    assert text.count("a lower bound, since") == 1
    assert text.count("while at test_comparison.py") == 1
    assert "while at test_comparison.py" in str(depth.compare(lax.sin, until, X, device=ROUND))
    assert "lower bound" not in str(depth.compare(lax.sin, lax.cos, X))


def test_a_lower_bound_gives_no_speedup_but_a_bound_of_one():
    """The loop makes no trip that is counted: a condition, at the least."""
    parallel = depth.compare(one_by_one, until, X, device=ROUND)
    assert (parallel.depth_speedup, parallel.predicted_speedup, parallel.work_ratio) == (None,) * 3
    assert parallel.depth_bounds == (0, 8)
    assert parallel.time_bounds == (0, 38 / parallel.parallel_seconds)
    depths, work, *_, times = str(parallel).splitlines()[1:6]
    assert depths.endswith("at most 8x less")
    assert work.endswith("at least 0.125x as much")
    assert "  at most 19x as fast, predicted for round" in times
    sequential = depth.compare(until, at_once, X, device=ROUND)
    assert sequential.depth_bounds.least == 1 / 3
    assert "at least 0.333x less" in str(sequential)
    assert [parallel.exact, sequential.exact] == [False, False]
    both = depth.compare(until, lambda x: lax.sin(until(x)), X, device=ROUND)
    assert both.time_bounds == (0, float("inf"))
    assert "unknown: lower bounds, predicted for round" in str(both)
    with pytest.warns(depth.LowerBoundWarning, match="the time is a lower bound"):
        depth.predict(parallel.parallel, ROUND)


def halving(x, trips=5):
    with named_loop("halving", trips, by="the tests", before=2):
        return lax.while_loop(lambda x: x[0] > 1, lambda x: x / 2, x)


def test_an_expected_number_of_trips_is_an_estimate():
    expected = depth.Expected("halving", 5, "the tests")
    found = depth.compare(one_by_one, halving, X, device=ROUND)
    assert found.parallel.expected == (expected,)
    assert [found.exact, found.parallel.exact, found.parallel.unknown] == [False, False, ()]
    assert found.parallel.depth == 3 * 2 + 1  # two of the trips were made in front; a condition
    assert found.depth_speedup == 8 / 7
    assert str(found).splitlines()[1].split(maxsplit=2) == ["depth", "8", "~ 7  1.14x less"]
    assert str(found).endswith("\n  halving: 5 trips, expected by the tests")
    assert depth.predict(found.parallel, ROUND) == found.parallel_seconds  # no warning
    with pytest.warns(depth.EstimateWarning, match="halving: 5 trips, expected by the tests"):
        assert depth.serial_depth(halving, X) == 7


def test_expectations_survive_what_jax_does_to_a_program():
    def program(x):
        def both(x):
            return jax.lax.scan(lambda x, _: (jax.jit(halving)(x), None), x, length=2)[0]

        return jax.vmap(jax.checkpoint(both))(x)

    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    sharded = jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec)
    for run in (program, sharded, lambda x: jax.jvp(program, (x,), (x,))):
        cost = depth.analyze(run, f(3, 8))
        assert [str(each) for each in cost.expected] == ["halving: 5 trips, expected by the tests"]
        assert not cost.unknown
        assert depth.analyze(run, f(3, 8), trip_counts={"halving": 9}).exact


def test_trip_counts_take_names_before_expectations_before_one_number_for_all():
    def program(x):
        with jax.named_scope("model"), jax.named_scope("doubling"):
            x = until(x)
        return halving(x)

    def works(trip_counts):
        cost = depth.analyze(program, X, trip_counts=trip_counts)
        return cost.work, len(cost.unknown), len(cost.expected)

    # A trip: a comparison of one entry, and eight products or quotients; and the last comparison.
    assert works(None) == (1 + 1 + 9 * 3, 1, 1)
    assert works(4) == (1 + 9 * 4 + 1 + 9 * 3, 0, 1)
    assert works({"doubling": 4, "halving": 9}) == (1 + 9 * 4 + 1 + 9 * 7, 0, 0)
    assert works({"model/doubling": 4, "halving": 1}) == (1 + 9 * 4 + 1, 0, 0)
    meant = r"'halfing', where no while loop needs it \(did you mean 'halving'\?\)"
    with pytest.raises(ValueError, match=meant):
        works({"halfing": 3})
    assert "give trip_counts={'doubling': ...}" in str(depth.analyze(program, X).unknown[0])


def test_programs_are_traced_for_the_device_that_is_compared():
    """Each by itself: neither takes a trace of another device, nor leaves its own."""
    seen = []

    @jax.jit
    def program(x):
        seen.append((platform(), depth.at_hand(platform()).name))
        return x

    for each in (None, "H100", "TPU v4", "H100"):
        depth.compare(program, program, X, device=each)
    assert [where for where, _ in seen] == ["cpu", "cuda", "tpu"]
    assert [name for _, name in seen[1:]] == ["H100", "TPU v4"]
    assert platform() == "cpu"


@pytest.mark.parametrize("device", ["H300", 3, {}], ids=repr)
def test_an_unknown_device_is_refused_before_anything_is_traced(device):
    with pytest.raises(ValueError, match=r"device must be a depth\.Device or one of"):
        depth.compare(never, never, X, device=device)


def identity(x):
    return x


def test_programs_without_depth():
    one = depth.compare(lambda x: sines(x, 3), identity, X)
    assert one.depth_speedup == 3  # as against one operation
    assert depth.compare(identity, lambda x: sines(x, 3), X).depth_speedup == 0
    same = depth.compare(identity, identity, X, device="H100")
    assert (same.depth_speedup, same.work_ratio, same.predicted_speedup) == (1, 1, 1)


TIMES = {0: "0 ns", 2e-9: "2 ns", 1.234e-7: "123 ns", 1.5e-6: "1.5 us", 1e-3: "1 ms", 999: "999 s"}


@pytest.mark.parametrize("value", TIMES)
def test_times_have_units(value):
    assert seconds(value) == TIMES[value]
