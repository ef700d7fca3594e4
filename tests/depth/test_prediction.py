"""Seconds derived by hand for a device of round figures, and how they follow from each."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
from tests.depth.cases import EXAMPLES, b, f, i, sines

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
STEPS = {
    "elementwise": 1.0,
    "reduction": 2.0,
    "vector product": 3.0,
    "product": 4.0,
    "transposed product": 5.0,
}
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


def vectors(x, w):
    """Products of a vector, four in a trip."""
    return lax.scan(lambda x, w: (lax.sin(x @ w), None), x, w, unroll=4)[0]


def until(x):
    return lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x)


def counted(x):
    return lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, lax.sin(s[1])), (0, x))[1]


def layers(x, w):
    """A product, which reads a slice of the weights, and what is elementwise."""
    return lax.scan(lambda x, w: (lax.sin(x @ w), None), x, w)[0]


def choice(p, x):
    return lax.cond(p, lambda x: lax.sin(x @ x), lax.sin, x)


large = jax.jit(lambda x: sines(x, 400))
W, X, Y, D = f(8, 8), f(8), f(4, 8), f(8, dtype="float64")
BATCH = (f(9, 4, 6), f(9, 6, 5))
CASES = {
    # call and launches
    "call": (lambda x: x, (X,), {"call_latency": 7.0}, 7, "nothing is launched"),
    "no output": (
        lambda x: None,
        (X,),
        {"call_latency": 7.0, "kernel_latency": 10.0},
        7,
        "nothing is launched",
    ),
    "call and a kernel": (
        lax.sin,
        (X,),
        {"call_latency": 7.0, "kernel_latency": 10.0},
        17,
        "the one after the other",
    ),
    "chain, product, chain": (
        lambda w, x: lax.sin(lax.sin(x) @ w),
        (W, Y),
        {"kernel_latency": 10.0},
        30,
        "3 kernels",
    ),
    "calls": (
        jax.jit(lambda x: jax.jit(lax.sort)(jax.jit(lax.sin)(x))),
        (X,),
        {"kernel_latency": 10.0},
        20,
        "sin, sort",
    ),
    "a large call, twice": (
        lambda x: large(large(x)),
        (X,),
        {"kernel_latency": 10.0, "call_latency": 7.0},
        27,
        "7, and one kernel each",
    ),
    "a batch": (
        jax.vmap(jnp.matmul),
        BATCH,
        {"kernel_latency": 10.0, "piece_latency": 2.0},
        26,
        "10 and 8 further pieces",
    ),
    # work
    "sines": (lax.sin, (X,), {"vector_rates": {"transcendental": 2.0}}, 4, "8 at 2 a second"),
    "sines of doubles": (
        lax.sin,
        (D,),
        {"vector_rates": {"transcendental": 2.0}},
        8,
        "8 at 1 a second",
    ),
    "sines by the rate of sums": (
        lax.sin,
        (X,),
        {"vector_rates": {"arithmetic": 20.0}},
        4,
        "8 at a tenth of 20",
    ),
    "sums": (lambda x: x + x, (X,), {"vector_rates": {"arithmetic": 4.0}}, 2, "8 at 4 a second"),
    "sums by the rate of products": (
        lambda x: x + x,
        (X,),
        {"rates": {"float32": 4.0}},
        2,
        "8 at 4 a second",
    ),
    "classes add up": (
        lambda x: lax.reduce_sum(lax.sin(x) + x, (0,)),
        (X,),
        {"vector_rates": {"arithmetic": 4.0, "transcendental": 2.0, "reduction": 7.0}},
        7,
        "8 / 4 + 8 / 2 + 7 / 7",
    ),
    "a transposition": (
        lambda x: x.T,
        (Y,),
        {"vector_rates": {"move": 4.0}},
        8,
        "32 at 4 a second",
    ),
    "a cumulative sum": (
        lax.cumsum,
        (X,),
        {"vector_rates": {"cumulative": 4.0}},
        2,
        "8 at 4 a second",
    ),
    "product": (
        lambda w, x: x @ w,
        (W, Y),
        {"rates": {"float32": 64.0}},
        8,
        "2 * 4 * 8 * 8 at 64 a second",
    ),
    "product of doubles": (
        lambda w, x: w @ x,
        (f(8, 8, dtype="float64"), D),
        {"rates": {"float32": 64.0, "float64": 16.0}},
        8,
        "128 at 16 a second",
    ),
    # traffic
    "traffic": (lax.sin, (X,), {"bandwidth": 8.0}, 8, "64 bytes at 8 a second"),
    "work over traffic": (
        lax.sin,
        (X,),
        {"bandwidth": 32.0, "vector_rates": {"transcendental": 2.0}},
        4,
        "4 over 2",
    ),
    "traffic over work": (
        lax.sin,
        (X,),
        {"bandwidth": 8.0, "vector_rates": {"transcendental": 2.0}},
        8,
        "8 over 4",
    ),
    "launch and the slower": (
        lax.sin,
        (X,),
        {"bandwidth": 8.0, "rates": {"float32": 1.0}, "kernel_latency": 1.0},
        81,
        "1 + 8 / 0.1",
    ),
    "from the cache": (
        lax.sin,
        (X,),
        {"bandwidth": 8.0, "cache_bandwidth": 32.0, "cache": 64},
        2,
        "64 bytes at 32 a second",
    ),
    "beyond the cache": (
        lax.sin,
        (X,),
        {"bandwidth": 8.0, "cache_bandwidth": 32.0, "cache": 63},
        8,
        "64 bytes at 8 a second",
    ),
    "a slice": (lambda x: x[2:5], (f(10**6),), {"bandwidth": 8.0}, 3, "3 in and 3 out"),
    # loops
    "scan": (loop(lax.sin, 9), (X,), LOOPS, 117, "9 (3 + 10)"),
    "scan, its work": (
        loop(lax.sin, 9),
        (X,),
        {**LOOPS, "vector_rates": {"transcendental": 2.0}},
        153,
        "9 (3 + 10 + 4)",
    ),
    "scan of no steps": (loop(lax.sin, 0), (X,), {**LOOPS, "call_latency": 7.0}, 7, "the call"),
    "scan of 10^9": (loop(lax.sin, 10**9), (X,), LOOPS, 13e9, "10^9 (3 + 10)"),
    "nested": (
        loop(lambda x: loop(lax.sin, 3)(x) * 2, 4),
        (X,),
        LOOPS,
        208,
        "4 (3 + 10 + 3 (3 + 10))",
    ),
    "scan, unrolled": (unrolled(4), (X,), LOOPS, 26, "8 / 4 * 10 + 2 * 3"),
    "scan, unrolled unevenly": (unrolled(3), (X,), LOOPS, 28, "8 / 4 * 10 + 8 / 3 * 3"),
    "layers, unrolled": (
        lambda x, w: lax.scan(lambda x, w: (lax.sin(x @ w), None), x, w, unroll=4)[0],
        (Y, f(8, 8, 8)),
        LOOPS,
        126,
        "8 (10 / 4 for the slice + the product 10 + sin 10 / 4) + 2 * 3",
    ),
    "scan, without a loop": (
        unrolled(True),
        (X,),
        {**LOOPS, "step_latencies": STEPS},
        80,
        "8 * 10, and no loop's latencies",
    ),
    "vectors, unrolled": (vectors, (X, f(8, 8, 8)), LOOPS, 66, "8 (10 + 10 + 10) / 4 + 2 * 3"),
    "long vectors, unrolled": (
        vectors,
        (f(64), f(8, 64, 64)),
        LOOPS,
        126,
        "8 (10 / 4 + the product 10 + 10 / 4) + 2 * 3",
    ),
    "steps": (loop(lax.sin, 9), (X,), {**LOOPS, "step_latencies": STEPS}, 36, "9 (3 + 1)"),
    "steps of two kinds": (
        loop(lambda x: x - jnp.max(x), 9),
        (X,),
        {**LOOPS, "step_latencies": STEPS},
        54,
        "9 (3 + 2 + 1)",
    ),
    "steps of short products": (
        lambda x, w: loop(lambda x: x @ w, 9)(x),
        (X, W),
        {**LOOPS, "step_latencies": {**STEPS, "short vector product": 1.0}},
        45,
        "9 (3 + 8 / 4), which is less than 3",
    ),
    "steps of longer products": (
        lambda x, w: loop(lambda x: x @ w, 9)(x),
        (X, W),
        {**LOOPS, "step_latencies": {**STEPS, "short vector product": 2.0}},
        54,
        "9 (3 + 3), since 2 * 8 / 4 is more",
    ),
    "steps of sines": (
        loop(lax.sin, 9),
        (X,),
        {**LOOPS, "step_latencies": {**STEPS, "transcendental": 7.0}},
        99,
        "9 (3 + 1 + 7)",
    ),
    "steps before a loop": (
        lambda x: loop(lax.sin, 9)(lax.sort(x)),
        (X,),
        {**LOOPS, "step_latencies": STEPS},
        46,
        "10 + 9 (3 + 1)",
    ),
    "layers": (
        layers,
        (Y, f(7, 8, 8)),
        LOOPS,
        231,
        "7 (3 + the slice 10 + the product 10 + sin 10)",
    ),
    "layers, steps": (
        layers,
        (Y, f(7, 8, 8)),
        {**LOOPS, "step_latencies": STEPS},
        63,
        "7 (3 + 1 + 4 + 1)",
    ),
    "layers, steps beside a product": (
        layers,
        (Y, f(7, 8, 8)),
        {**LOOPS, "step_latencies": {**STEPS, "beside product": 6.0}},
        133,
        "7 (3 + 6 + 4 + 6)",
    ),
    "counted while": (counted, (X,), LOOPS, 117, "9 (3 + 10); its condition is of an integer"),
    # branches
    "the slowest branch": (choice, (b(), W), {"kernel_latency": 10.0}, 20, "two kernels, or one"),
    "branches in a loop": (
        lambda p, x: lax.scan(lambda x, p: (choice(p, x), None), x, p)[0],
        (b(5), W),
        LOOPS,
        115,
        "5 (3 + 20)",
    ),
    "the one with nothing to do": (
        lambda n, x: lax.switch(n, [lambda x: x] * 2, x),
        (i(), X),
        {"kernel_latency": 10.0},
        0,
        "none",
    ),
    # sizes
    "no elements": (
        lambda x: x * 2,
        (f(0),),
        {"bandwidth": 8.0, "kernel_latency": 10.0},
        10.5,
        "a launch, and the 2",
    ),
}


@pytest.mark.parametrize(("fn", "args", "figures", "expected", "why"), CASES.values(), ids=CASES)
def test_seconds_by_hand(fn, args, figures, expected, why):
    assert seconds(fn, *args, **figures) == pytest.approx(expected, rel=1e-12), why


def test_a_loop_that_depends_on_data_waits_for_its_condition():
    assert seconds(until, X, trip_counts=7, **LOOPS) == 175  # 7 (5 + condition 10 + body 10)
    assert seconds(until, X, trip_counts=0, **LOOPS) == 0
    with pytest.warns(depth.LowerBoundWarning, match="the time is a lower bound"):
        assert seconds(until, X, **LOOPS) == 0
    assert seconds(lambda x: loop(until, 2)(x), X, trip_counts=7, **LOOPS) == 2 * (3 + 175)


def test_a_condition_with_a_product_is_no_body_with_one():
    def product(x):
        return lax.while_loop(lambda x: (x @ x)[0, 0] < 9, lambda x: x * 2, x)

    steps = {"elementwise": 1.0, "product": 4.0, "beside product": 6.0}
    got = seconds(product, W, trip_counts=3, trip_latency=5.0, step_latencies=steps)
    assert got == 3 * (
        5 + 4 + 1 + 1
    )  # the product, the comparison of one of its elements, the body


def everything(x, w):
    """A bit of each: products, a scan, a loop until, a choice, reductions."""
    x = layers(x, w) @ w[0]
    x = jax.vmap(jnp.matmul)(until(x.ravel()).reshape(4, 1, 8), jnp.stack([w[0]] * 4))[:, 0]
    return lax.cond(x[0, 0] > 0, lambda x: x.T @ x, lambda x: x.T @ lax.sin(x), jax.nn.softmax(x))


FULL = depth.Device(
    "full",
    call_latency=16.0,
    kernel_latency=4.0,
    loop_latency=2.0,
    trip_latency=8.0,
    piece_latency=0.25,
    step_latencies={**STEPS, "beside product": 6.0},
    rates={"float32": 64.0, "float64": 32.0},
    vector_rates={
        "arithmetic": 16.0,
        "transcendental": 2.0,
        "reduction": 8.0,
        "cumulative": 4.0,
        "move": 8.0,
    },
    bandwidth=32.0,
    cache_bandwidth=64.0,
    cache=128.0,
    memory=1e9,
)
LATENCIES = ["call_latency", "kernel_latency", "loop_latency", "trip_latency", "piece_latency"]


@pytest.fixture(scope="module")
def cost():
    return depth.analyze(everything, Y, f(7, 8, 8), trip_counts=5)


@pytest.mark.parametrize("figure", LATENCIES)
def test_more_latency_takes_longer(cost, figure):
    times = [
        depth.predict(cost, FULL.replace(**{figure: factor * getattr(FULL, figure)}))
        for factor in (0, 1, 2, 3)
    ]
    assert times[0] < times[1] < times[2] < times[3]
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert steps == pytest.approx(
        [steps[0]] * 3
    )  # what one second more of it adds does not depend on how long it is


@pytest.mark.parametrize("kind", FULL.step_latencies)
def test_slower_steps_never_take_less(cost, kind):
    slower = FULL.replace(step_latencies={**FULL.step_latencies, kind: 100.0})
    assert depth.predict(cost, slower) >= depth.predict(cost, FULL)


def scaled(device, factor):
    """Its rates and bandwidths times ``factor``."""
    rates = {dtype: factor * rate for dtype, rate in device.rates.items()}
    vector_rates = {kind: factor * rate for kind, rate in device.vector_rates.items()}
    cache_bandwidth = device.cache_bandwidth and factor * device.cache_bandwidth
    return device.replace(
        rates=rates,
        vector_rates=vector_rates,
        bandwidth=factor * device.bandwidth,
        cache_bandwidth=cache_bandwidth,
    )


def without_latencies(device):
    return device.replace(**dict.fromkeys(LATENCIES, 0.0), step_latencies={}, node_latency=None)


@pytest.mark.parametrize("device", [FULL, *depth.devices.values()], ids=["full", *depth.devices])
def test_twice_the_rates_take_half_as_long(cost, device):
    device = without_latencies(device)
    assert depth.predict(cost, scaled(device, 2)) == pytest.approx(depth.predict(cost, device) / 2)


def test_each_rate_matters_only_if_something_waits_for_it(cost):
    before = depth.predict(cost, FULL)
    for change in ({"bandwidth": 1.0}, {"cache_bandwidth": 1.0}, {"rates": {"float32": 0.5}}):
        assert depth.predict(cost, FULL.replace(**change)) > before
    assert (
        depth.predict(cost, FULL.replace(memory=1.0, rates={**FULL.rates, "float64": 1.0}))
        == before
    )


@pytest.mark.parametrize(
    "fn", [lax.sin, lambda x: x - jnp.max(x), lambda x: x @ x], ids=["sin", "max", "product"]
)
def test_time_is_linear_in_the_length_of_a_scan(fn):
    times = {length: seconds(loop(fn, length), W, device=FULL) for length in (0, 1, 2, 100, 10**6)}
    assert times[0] == FULL.call_latency
    step = times[1] - times[0]
    assert step > FULL.loop_latency
    for length, time in times.items():
        assert time == pytest.approx(times[0] + length * step)


def test_a_name_is_the_device_of_the_table(cost):
    for name, device in depth.devices.items():
        assert depth.predict(cost, name) == depth.predict(cost, device)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("device", depth.devices)
def test_examples_take_a_plausible_time_on_every_device(name, device):
    fn, args = EXAMPLES[name]
    time = seconds(fn, *args, device=depth.devices[device])
    assert depth.devices[device].call_latency < time < 0.1


def test_a_faster_device_is_faster():
    x = f(8192, 8192)
    times = [
        seconds(lambda x: x @ x, x, device=depth.devices[name]) for name in ("V100", "A100", "H100")
    ]
    assert times == sorted(set(times), reverse=True)
    times = [
        seconds(lambda x: x + x, x, device=depth.devices[name])
        for name in ("V100", "A100", "H100", "H200")
    ]
    assert times == sorted(set(times), reverse=True)


EMPTY = {
    "no output": (lambda x: None, (X,)),
    "no input": (lambda: jnp.zeros(3), ()),
    "nothing at all": (lambda: (), ()),
    "no elements": (lambda x: jnp.sum(jnp.sin(x)), (f(0),)),
    "an empty product": (jnp.matmul, (f(0, 4), f(4, 0))),
    "an empty contraction": (jnp.matmul, (f(4, 0), f(0, 4))),
    "an empty batch": (jax.vmap(jnp.matmul), (f(0, 4, 4), f(0, 4, 4))),
    "an empty loop": (loop(lambda x: x @ x, 0), (W,)),
    "an empty carry": (loop(lax.sin, 5), (f(0),)),
    "an empty sort": (lax.sort, (f(0),)),
}


@pytest.mark.parametrize(("fn", "args"), EMPTY.values(), ids=EMPTY)
def test_programs_of_nothing_take_little(fn, args):
    time = seconds(fn, *args, device=FULL)
    assert FULL.call_latency <= time < FULL.call_latency + 50


@pytest.mark.parametrize(
    "cost", [3, "cost", None, lax.sin, 1.5], ids=["number", "text", "none", "function", "depth"]
)
def test_what_is_no_cost_is_refused(cost):
    with pytest.raises(TypeError, match=rf"cost must be a depth\.Cost.*{type(cost).__name__}"):
        depth.predict(cost, FULL)


@pytest.mark.parametrize("device", ["H300", None, 3, {"name": "H100"}], ids=repr)
def test_what_is_no_device_is_refused(cost, device):
    with pytest.raises(ValueError, match=r"device must be a depth\.Device or one of 'V100'"):
        depth.predict(cost, device)


# -- what is measured has the units of what is predicted ------------------------------------------


def test_an_unrolled_loop_may_be_too_large_to_be_compiled_as_one_piece():
    device = FREE.replace(
        small_loop=100.0, step_latencies={**STEPS, "beside product": 6.0, "crowded": 9.0}
    )
    plain, twice, four = (seconds(unrolled(count), X, device=device) for count in (1, 2, 4))
    assert plain == 8 * 1
    assert twice == 8 * 6 + 4 * 3 * 6  # three kernels around each trip
    assert four == 8 * 6 + 2 * 3 * 6
    assert seconds(unrolled(6), X, device=device) == pytest.approx(
        8 * 9 + 8 / 6 * 3 * 9
    )  # nine kernels in a trip are many


@pytest.mark.parametrize(
    ("axis", "terms", "kind"),
    [(1, 32, "contraction"), (2, 32, "reduction"), (2, 8, "contraction")],
)
def test_a_sum_along_vectors_is_slower_than_one_of_vectors(axis, terms, kind):
    shape = [4, 16, 16]
    shape[axis] = terms
    cost = depth.analyze(lambda a, b: jnp.sum(a * b, axis), f(*shape), f(*shape))
    ((kernel, count),) = cost.program.kernels
    assert count == 1
    assert {"contraction", "reduction"} & set(dict(kernel.operations)) == {kind}
