"""Kernels in CUDA graphs: seconds derived by hand, as in `test_prediction`."""

import functools

import pytest
from jax import lax

from tests.depth.cases import f
from tests.depth.test_prediction import FREE, LOOPS, W, X, Y, loop, seconds

GPU = FREE.replace(**LOOPS, node_latency=2.0)


def products(times):
    """So many kernels in a row."""
    return lambda x, w: functools.reduce(lambda x, _: x @ w, range(times), x)


def vectors(unroll):
    """Products of a vector, so many in a trip."""
    return lambda x, w: lax.scan(lambda x, w: (lax.sin(x @ w), None), x, w, unroll=unroll)[0]


@pytest.mark.parametrize(
    ("program", "arguments", "expected"),
    [
        (products(5), (Y, W), 10 + 5 * 2),
        (products(4), (Y, W), 4 * 10),
        (loop(lambda x: products(6)(x, x), 9), (W,), 9 * (3 + 10 + 6 * 2)),
        (loop(lax.sin, 9), (X,), 9 * (3 + 10)),
        (vectors(8), (X, f(16, 8, 8)), 2 * (3 + 10) + 16 * (2 + 2 + 2) / 4),
        (vectors(True), (X, f(4, 8, 8)), 10 + 4 * (2 + 2 + 2)),
    ],
    ids=["a graph", "too few", "each trip", "too few each trip", "unrolled", "no loop is left"],
)
def test_five_kernels_in_a_row_are_launched_at_once(program, arguments, expected):
    assert seconds(program, *arguments, device=GPU) == expected
