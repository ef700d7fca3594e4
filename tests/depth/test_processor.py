"""Seconds of a CPU derived by hand for round figures, and which loops are one function."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
from depth.processor import ALONE, Processor
from tests.depth.cases import f
from tests.depth.test_prediction import FREE, loop, seconds, until

CPU = FREE.replace(platform="cpu", small_loop=1e4)
X, Y, W, D = f(8), f(16, 64), f(64, 64), f(8, dtype="float64")
WAITS, CALLS = {"operation_latency": 1.0}, {"kernel_latency": 10.0}
SINES, SUMS = {"transcendental": 2.0}, {"arithmetic": 4.0}
SMALL = f(2, 2)


def ema(x, xs):
    """A sum of all before it, kept."""
    return lax.scan(lambda z, x: (z + x,) * 2, x, xs)[1]


def gates(x):
    """Two halves of what was computed."""
    a, b = jnp.split(jnp.tanh(x), 2)
    return a * b


CASES = {
    # A vector has 16 entries of float32, and takes as long as one of them.
    "a vector": (jnp.tanh, (f(3),), {"vector_rates": SINES}, 8),
    "two vectors": (jnp.tanh, (f(17),), {"vector_rates": SINES}, 16),
    "double precision": (jnp.tanh, (D,), {"vector_rates": SINES}, 8),
    "entry by entry": (lax.sin, (f(3),), {"vector_rates": SINES}, 12),
    "slices of what was computed": (gates, (f(32),), {"vector_rates": SINES}, 32 * 8 / 2),
    "a sum along vectors": (jnp.sum, (f(64),), {"vector_rates": {"reduction": 4.0}}, 16),
    # a call for each array, and of a library
    "a call": (lambda x: (x + 1, x * 2), (X,), CALLS, 20),
    "a library": (jnp.matmul, (Y, W), CALLS | {"product_latency": 5.0}, 15),
    "no library": (jnp.matmul, (SMALL, SMALL), CALLS | {"product_latency": 5.0}, 10),
    "a factorization": (jnp.linalg.cholesky, (f(3, 4, 4),), {"piece_latency": 5.0}, 10),
    "arguments and results": (lambda x, y: x + y, (X, X), {"array_latency": 2.0}, 6),
    # loops that are one function wait for their operations, from state to state
    "waits": (loop(lambda x: (x + 1) * x - 2, 9), (X,), WAITS | CALLS, 27),
    "a function waits longer": (loop(jnp.tanh, 9), (X,), WAITS | CALLS, 9 * 12),
    "inputs do not wait": (ema, (X, f(9, 8)), WAITS | CALLS, 9),
    "work": (loop(jnp.tanh, 9), (f(64),), WAITS | {"vector_rates": SINES}, 9 * 32),
    "a product inside": (loop(lambda x: x @ x, 9), (SMALL,), WAITS | CALLS, 9 * 6),
    "what is read and kept": (ema, (X, f(9, 8)), {"bandwidth": 4.0}, 9 * (16 + 32) / 4),
    # others call a function for each array
    "too many bytes": (loop(lambda x: x + 1, 9), (f(2048),), WAITS | CALLS, 9 * 11),
    "a product in a loop": (loop(lambda x: jnp.tanh(x @ x), 9), (W,), CALLS, 9 * 20),
}


@pytest.mark.parametrize(("fn", "args", "figures", "expected"), CASES.values(), ids=CASES)
def test_seconds_by_hand(fn, args, figures, expected):
    assert seconds(fn, *args, device=CPU, **figures) == pytest.approx(expected, rel=1e-12)


def test_threads_share_what_is_large_of_a_product():
    for size in (100, 500):
        work, x = 2 * size**3, f(size, size)
        alone = min(work, ALONE)
        for threads in (1, 2):
            device = CPU.replace(threads=threads, rates={"float32": 1e3})
            expected = (alone + (work - alone) / threads) / 1e3
            assert seconds(jnp.matmul, x, x, device=device) == pytest.approx(expected, rel=1e-12)


def is_one_function(fn, *args, small_loop):
    """Whether the only loop of a program is."""
    program = depth.analyze(fn, *args).program
    found = [part for part, _ in program.parts]
    while not isinstance(found[0], depth.kernels.KernelLoop):
        found = [part for part, _ in found[0].parts]
    return Processor(CPU.replace(small_loop=small_loop)).is_one_function(found[0])


LOOPS = {
    "one vector": (loop(jnp.tanh, 9), f(64), (True, True)),
    "a kilobyte": (loop(jnp.tanh, 9), f(1024), (False, True)),
    "many kilobytes": (loop(jnp.tanh, 9), f(16384), (False, False)),
    "a product": (loop(lambda x: x @ x, 9), f(8, 8), (False, False)),
    "a factorization": (loop(jnp.linalg.cholesky, 9), f(2, 2), (False, False)),
    "a sort": (loop(lax.sort, 9), f(4), (False, False)),
}


@pytest.mark.parametrize(("fn", "x", "expected"), LOOPS.values(), ids=LOOPS)
def test_which_loops_are_one_function(fn, x, expected):
    """With jax 0.10 and 0.12."""
    found = tuple(is_one_function(fn, x, small_loop=limit) for limit in (1024.0, 65536.0))
    assert found == expected


# Of a loop that is too large, jax 0.12 has parts in such functions.
@pytest.mark.parametrize("name", sorted(LOOPS.keys() - {"many kilobytes"}))
def test_as_the_compiler_has_them(name):
    """The programs of this process have calls of such functions where it is said."""
    fn, x, expected = LOOPS[name]
    code = jax.jit(fn).lower(x).compile().runtime_executable().serialize()
    is_new = depth.at_hand("cpu").small_loop > 1024
    assert (depth.platforms.EMITTED in code) == expected[is_new]


def test_a_loop_that_depends_on_data_evaluates_its_condition():
    figures = {"trip_latency": 5.0, "operation_latency": 1.0}
    assert seconds(until, X, device=CPU, trip_counts=7, **figures) == 7 * (5 + 1 + 1)
