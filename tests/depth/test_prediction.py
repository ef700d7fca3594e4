"""Seconds derived by hand for a device of round figures, and how they follow from each."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
from tests.depth.cases import b, f, i, sines

# A device on which all takes no time; each case slows down what it is about.
FREE = depth.Device(
    "free",
    kernel_latency=0.0,
    loop_latency=0.0,
    trip_latency=0.0,
    rates={"float32": math.inf},
    bandwidth=math.inf,
    memory=1.0,
)
LOOPS = {"kernel_latency": 10.0, "loop_latency": 3.0, "trip_latency": 5.0}


def seconds(fn, *args, device=FREE, trip_counts=None, **figures):
    return depth.predict(
        depth.analyze(fn, *args, trip_counts=trip_counts), device.replace(**figures)
    )


def loop(fn, length):
    """``fn`` so many times."""
    return lambda x: lax.scan(lambda x, _: (fn(x), None), x, length=length)[0]


def unrolled(unroll):
    """Eight sines in a loop, so many in a trip."""
    return lambda x: lax.scan(lambda x, _: (lax.sin(x), None), x, length=8, unroll=unroll)[0]


def layers_of(unroll):
    """A product, which reads a slice of the weights, and what is elementwise; so many in a trip."""
    return lambda x, w: lax.scan(lambda x, w: (lax.sin(x @ w), None), x, w, unroll=unroll)[0]


def until(x):
    return lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x)


def counted(x):
    return lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, lax.sin(s[1])), (0, x))[1]


def choice(p, x):
    return lax.cond(p, lambda x: lax.sin(x @ x), lax.sin, x)


large = jax.jit(lambda x: sines(x, 400))
W, X, Y, D = f(8, 8), f(8), f(4, 8), f(8, dtype="float64")
CALL, LAUNCH, TRAFFIC = {"call_latency": 7.0}, {"kernel_latency": 10.0}, {"bandwidth": 8.0}
SINES, SUMS = {"transcendental": 2.0}, {"arithmetic": 4.0}


def vector(**rates):
    return {"vector_rates": rates}


def branches(p, x):
    return lax.scan(lambda x, p: (choice(p, x), None), x, p)[0]


PRODUCTS = {"rates": {"float32": 64.0, "float64": 16.0}}
CASES = {
    # call and launches
    "call and a kernel": (lax.sin, (X,), CALL | LAUNCH, 17),
    "chain, product, chain": (lambda w, x: lax.sin(lax.sin(x) @ w), (W, Y), LAUNCH, 30),
    "a large call, twice": (lambda x: large(large(x)), (X,), CALL | LAUNCH, 27),
    "a batch": (
        jax.vmap(jnp.matmul),
        (f(9, 4, 6), f(9, 6, 5)),
        LAUNCH | {"piece_latency": 2.0},
        26,
    ),
    # work
    "sines": (lax.sin, (X,), vector(**SINES), 4),
    "sums by the rate of products": (lambda x: x + x, (X,), {"rates": {"float32": 4.0}}, 2),
    "classes add up": (
        lambda x: lax.reduce_sum(lax.sin(x) + x, (0,)),
        *((X,), vector(**SUMS, **SINES, reduction=7.0), 7),
    ),
    "a transposition": (lambda x: x.T, (Y,), vector(move=4.0), 8),
    "product": (lambda w, x: x @ w, (W, Y), PRODUCTS, 8),
    # traffic
    "work over traffic": (lax.sin, (X,), {"bandwidth": 32.0} | vector(**SINES), 4),
    "launch and the slower": (
        *(lax.sin, (X,), TRAFFIC | {"rates": {"float32": 1.0}, "kernel_latency": 1.0}, 81),
    ),
    "from the cache": (lax.sin, (X,), TRAFFIC | {"cache_bandwidth": 32.0, "cache": 64}, 2),
    "beyond the cache": (lax.sin, (X,), TRAFFIC | {"cache_bandwidth": 32.0, "cache": 63}, 8),
    "no elements": (lambda x: x * 2, (f(0),), TRAFFIC | LAUNCH, 10.5),
    # loops
    "scan": (loop(lax.sin, 9), (X,), LOOPS, 117),
    "scan, unrolled": (unrolled(4), (X,), LOOPS, 26),
    "scan, unrolled unevenly": (unrolled(3), (X,), LOOPS, 28),
    "layers, unrolled": (layers_of(4), (Y, f(8, 8, 8)), LOOPS, 126),
    "vectors, unrolled": (layers_of(4), (X, f(8, 8, 8)), LOOPS, 66),
    "long vectors, unrolled": (layers_of(4), (f(64), f(8, 64, 64)), LOOPS, 126),
    "layers": (layers_of(1), (Y, f(7, 8, 8)), LOOPS, 231),
    "counted while": (counted, (X,), LOOPS, 117),
    # branches
    "the slowest branch": (choice, (b(), W), LAUNCH, 20),
    "branches in a loop": (branches, (b(5), W), LOOPS, 115),
    "nothing to do": (lambda n, x: lax.switch(n, [lambda x: x] * 2, x), (i(), X), LAUNCH, 0),
}


@pytest.mark.parametrize(("fn", "args", "figures", "expected"), CASES.values(), ids=CASES)
def test_seconds_by_hand(fn, args, figures, expected):
    assert seconds(fn, *args, **figures) == pytest.approx(expected, rel=1e-12)


def test_a_loop_that_depends_on_data_waits_for_its_condition():
    assert seconds(until, X, trip_counts=7, **LOOPS) == 175  # 7 (5 + condition 10 + body 10)
    assert seconds(until, X, trip_counts=0, **LOOPS) == 0
    with pytest.warns(depth.LowerBoundWarning, match="the time is a lower bound"):
        assert seconds(until, X, **LOOPS) == 0
    assert seconds(lambda x: loop(until, 2)(x), X, trip_counts=7, **LOOPS) == 2 * (3 + 175)


@pytest.mark.parametrize(
    "cost", [3, "cost", None, lax.sin, 1.5], ids=["number", "text", "none", "function", "depth"]
)
def test_what_is_no_cost_is_refused(cost):
    with pytest.raises(TypeError, match=rf"cost must be a depth\.Cost.*{type(cost).__name__}"):
        depth.predict(cost, FREE)


@pytest.mark.parametrize("device", ["H300", None, 3, {"name": "H100"}], ids=repr)
def test_what_is_no_device_is_refused(device):
    with pytest.raises(ValueError, match=r"device must be a depth\.Device or one of 'V100'"):
        depth.predict(depth.Cost(), device)


def products(times):
    """So many kernels in a row."""
    return lambda x, w: functools.reduce(lambda x, _: x @ w, range(times), x)


@pytest.mark.parametrize(
    ("program", "arguments", "expected"),
    [
        (products(5), (Y, W), 10 + 5 * 2),
        (products(4), (Y, W), 4 * 10),
        (loop(lambda x: products(6)(x, x), 9), (W,), 9 * (3 + 10 + 6 * 2)),
        (loop(lax.sin, 9), (X,), 9 * (3 + 10)),
        (layers_of(8), (X, f(16, 8, 8)), 2 * (3 + 10) + 16 * (2 + 2 + 2) / 4),
        (layers_of(True), (X, f(4, 8, 8)), 10 + 4 * (2 + 2 + 2)),
    ],
    ids=["a graph", "too few", "each trip", "too few each trip", "unrolled", "no loop is left"],
)
def test_five_kernels_in_a_row_are_launched_at_once(program, arguments, expected):
    assert seconds(program, *arguments, **LOOPS, node_latency=2.0) == expected


@pytest.mark.parametrize(
    ("axis", "terms", "kind"), [(1, 32, "contraction"), (2, 32, "reduction"), (2, 8, "contraction")]
)
def test_a_sum_along_vectors_is_slower_than_one_of_vectors(axis, terms, kind):
    shape = [4, 16, 16]
    shape[axis] = terms
    cost = depth.analyze(lambda a, b: jnp.sum(a * b, axis), f(*shape), f(*shape))
    ((kernel, count),) = cost.program.kernels
    assert count == 1
    assert {"contraction", "reduction"} & set(dict(kernel.operations)) == {kind}
