"""Costs add up, and repeat, to what `depth.analyze` reads of the whole; the printer of tables."""

import jax.numpy as jnp
import pytest
from jax import lax

import depth
from depth.kernels import Kernel, KernelChoice, KernelLoop, KernelProgram
from depth.report import table
from tests.depth.cases import f, sines

X = f(8)
DEVICES = ["H200", "TPU v5e", depth.models.generic_cpu(2)]


def until(x):
    return lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x)


def scanned(x):
    return lax.scan(lambda x, _: (jnp.sin(x), None), x, length=9)[0]


def product(x):
    return jnp.sin(x) @ x


PROGRAMS = {
    "sines": lambda x: sines(x, 3),
    "scan": scanned,
    "product": product,
    "nothing": lambda x: x,
}


def analyzed(name):
    return depth.analyze(PROGRAMS[name], X)


@pytest.mark.parametrize("first", PROGRAMS)
def test_one_after_the_other(first):
    for second in PROGRAMS:
        a, b = analyzed(first), analyzed(second)
        both = a + b
        for total in ("depth", "work", "bytes", "traffic"):
            assert getattr(both, total) == getattr(a, total) + getattr(b, total)
        assert both.by_output == a.depth + b.by_output
        assert sum(row.depth for row in both.critical_path) == both.depth
        for device in DEVICES:
            assert both.seconds(device) == pytest.approx(a.seconds(device) + b.seconds(device))


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("times", [0, 1, 9, 10**9])
def test_a_loop(times, counted):
    once = depth.analyze(product, X)
    loop = once.repeat(times, counted)
    for total in ("depth", "work", "bytes", "traffic"):
        assert getattr(loop, total) == times * getattr(once, total)
    assert loop.by_output == loop.depth
    rows, of_one = (sum(row.count for row in each.critical_path) for each in (loop, once))
    assert rows == times * of_one
    ((part, number),) = loop.program.parts
    assert (part.trips, part.counted, number) == (times, counted, 1)


def test_a_counted_loop_is_a_scan():
    loop, scan = depth.analyze(jnp.sin, X).repeat(9), depth.analyze(scanned, X)
    assert (loop.depth, loop.work, loop.bytes) == (scan.depth, scan.work, scan.bytes)
    assert [loop.seconds(each) for each in DEVICES] == [scan.seconds(each) for each in DEVICES]


def test_a_loop_that_depends_on_data_waits_in_every_iteration():
    device = depth.devices["H200"].replace(loop_latency=1.0, trip_latency=3.0)
    once = depth.analyze(jnp.sin, X)
    counted, asked = (once.repeat(5, counted).seconds(device) for counted in (True, False))
    assert asked - counted == pytest.approx(5 * (3.0 - 1.0))


def test_what_is_not_known_of_either_is_not_known_of_the_sum():
    known, unknown = analyzed("sines"), depth.analyze(until, X)
    for total in (known + unknown, unknown + known, unknown.repeat(3), unknown + unknown):
        assert not total.exact
        assert len(total.unknown) == 1
        assert ">=" in str(total)


def test_only_costs_can_be_added():
    with pytest.raises(TypeError, match="unsupported operand"):
        analyzed("sines") + 3


def test_traffic_of_loops_and_branches():
    kernel = Kernel("elementwise", "float32", (), 5)
    one = KernelProgram(((kernel, 2),), ())
    two = KernelProgram(
        ((kernel, 1),),
        ((KernelLoop(3, one, condition=one), 1), (KernelChoice((one, one + one)), 2)),
    )
    assert one.traffic == 10
    assert two.traffic == 5 + 3 * (10 + 10) + 2 * 20


def test_sections_blank_lines_and_no_header():
    rows = [("forward", "depth"), ("  scan", "1"), (), ("gradient",), ("  scan", "12")]
    expected = ["forward   depth", "  scan        1", "", "gradient", "  scan       12"]
    assert table((), rows, "<>").splitlines() == expected
    assert table((), [("a", "b")], indent=2) == "  a  b"
    assert table((), []) == ""
    assert table(("a", "b"), []) == "a  b"
