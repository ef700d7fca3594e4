"""Reductions, windows, sorting, products, transforms and factorizations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import depth
from tests.depth.cases import b, check, f, i, table

BF16 = jnp.bfloat16
COMPLEX = jax.ShapeDtypeStruct((8,), "complex64")


def windows(operation, start, sizes, strides=None, padding="VALID"):
    strides = strides or (1,) * len(sizes)
    return lambda x: lax.reduce_window(
        x, np.array(start, x.dtype), operation, sizes, strides, padding
    )


def max_pool_gradient(sizes, strides):
    pool = windows(lax.max, -jnp.inf, sizes, strides)
    return lambda x, g: jax.vjp(pool, x)[1](g)[0]


def convolution(strides, numbers, **options):
    return lambda x, w: lax.conv_general_dilated(
        x, w, strides, "VALID", dimension_numbers=numbers, **options
    )


def contract(left, right, left_batch=(), right_batch=(), **options):
    numbers = ((left, right), (left_batch, right_batch))
    return lambda x, y: lax.dot_general(x, y, numbers, **options)


def pick(x, indices):
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(x, indices, numbers, slice_sizes=(1,), mode="clip")


def put(scatter, **options):
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    return lambda x, indices, updates: scatter(x, indices, updates, numbers, mode="drop", **options)


def sum_and_product(x, y):
    return lax.reduce(
        (x, y), (jnp.float32(0), jnp.float32(0)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)
    )


@table(
    ("sum-of-no-rows", lambda x: jnp.sum(x, 1), (f(0, 6),), 3, "the axis counts: ceil(log2 6)"),
    ("sum-two-axes", lambda x: jnp.sum(x, (0, 2)), (f(4, 5, 8),), 5, "ceil(log2 4 * 8)"),
    ("sum-no-axes", lambda x: jnp.sum(x, ()), (f(4, 5),), 0, "nothing is reduced"),
    ("sum-huge", jnp.sum, (f(10**6, 10**6),), 40, "ceil(log2 10^12) = 40"),
    ("argmin", lambda x: lax.argmin(x, 1, "int32"), (f(10, 5),), 3, "ceil(log2 5)"),
    ("all", lambda p: jnp.all(p, 0), (b(5, 100),), 3, "ceil(log2 5)"),
    ("norm", lambda x: jnp.sqrt(jnp.sum(x * x)), (f(8),), 5, "mul 1 + 3 + sqrt 1"),
    ("sum-bfloat16", jnp.sum, (f(8, dtype=BF16),), 5, "cast to float32 1 + 3 + cast back 1"),
    (
        "reduce-own",
        lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: jnp.sin(a + b), (0,)),
        (f(8),),
        6,
        "3 levels of add 1 + sin 1",
    ),
    ("reduce-pairs", sum_and_product, (f(8), f(8)), (3, 3), "3 levels of add 1 beside mul 1"),
    ("cumsum-axis", lambda x: lax.cumsum(x, 1, reverse=True), (f(100, 5),), 3, "ceil(log2 5)"),
    ("cummax", lambda x: lax.cummax(x) - lax.cummin(x), (f(8),), 4, "side by side 3, sub 1"),
    ("cumlogsumexp", lax.cumlogsumexp, (f(16),), 4, "ceil(log2 16)"),
    ("window-sum", windows(lax.add, 0, (3,)), (f(8),), 2, "ceil(log2 3)"),
    ("max-pool", windows(lax.max, -jnp.inf, (1, 2, 2, 1), (1, 2, 2, 1)), (f(4, 8, 8, 3),), 2),
    ("mean-pool", lambda x: windows(lax.add, 0, (2, 2))(x) / 4, (f(8, 8),), 3),
    ("window-own", windows(lambda x, y: jnp.sin(x * y), 0, (4,)), (f(8),), 4),
    ("max-pool-grad", max_pool_gradient((2,), (2,)), (f(8), f(4)), 1),
    ("overlapping-grad", max_pool_gradient((3,), (1,)), (f(8), f(6)), 4),
    ("sort-axis", lambda x: lax.sort(x, 0), (f(4, 100),), 2, "ceil(log2 4)"),
    ("sort-two", lambda x, y: lax.sort((jnp.sin(x), y), num_keys=1), (f(8), f(8)), (4, 4)),
    ("top-k", lambda x: lax.top_k(x, 2), (f(5, 10),), (4, 4)),
    ("approx-max", lambda x: lax.approx_max_k(x, 2), (f(10),), (4, 4), "as top_k: ceil(log2 10)"),
    ("gather", pick, (f(8), i(3, 1)), 0, "a move 0"),
    ("gather-waits", lambda x, n: pick(x, n + n), (f(8), i(3, 1)), 1),
    ("scatter-add", put(lax.scatter_add), (f(8), i(3, 1), f(3)), 2),
    ("scatter-many", put(lax.scatter_add), (f(8), i(4, 2, 1), f(4, 2)), 4),
    ("scatter-unique", put(lax.scatter_add, unique_indices=True), (f(8), i(3, 1), f(3)), 1),
    ("scatter-max", put(lax.scatter_max), (f(8), i(7, 1), f(7)), 3),
    ("scatter-none", put(lax.scatter_add), (f(8), i(0, 1), f(0)), 0, "no update"),
    ("two-axes", contract((0, 2), (1, 0)), (f(4, 3, 6), f(6, 4)), 6, "1 + ceil(log2 4 * 6)"),
    ("einsum-3", lambda x, w, y: jnp.einsum("i,ij,j->", x, w, y), (f(8), f(8, 8), f(8)), 8),
    ("vdot", lambda x, y: jnp.vdot(x, y), (f(2, 4), f(2, 4)), 4, "one axis of 8: 1 + 3"),
    ("tensordot", lambda x, y: jnp.tensordot(x, y, 2), (f(3, 2, 4), f(2, 4, 5)), 4),
    ("dot-bfloat16", jnp.dot, (f(8, dtype=BF16), f(8, dtype=BF16)), 4, "1 + 3 whatever the dtype"),
    ("ragged", lax.ragged_dot, (f(12, 8), f(3, 8, 5), i(3)), 4),
    ("conv-2d", convolution((1, 1), ("NHWC", "HWIO", "NHWC")), (f(2, 8, 8, 3), f(3, 3, 3, 5)), 6),
    (
        "conv-groups",
        convolution((1,), ("NWC", "WIO", "NWC"), feature_group_count=4),
        (f(2, 10, 4), f(3, 1, 8)),
        3,
        "each result sees 1 channel of 4: K = 3: 1 + 2",
    ),
    ("conv-relu", lambda x, w: lax.max(jnp.convolve(x, w), x[0]), (f(8), f(4)), 4),
    ("fft", lambda z: lax.fft(z, "FFT", (8,)), (COMPLEX,), 4, "product 1 + ceil(log2 8)"),
    ("ifft2", lambda z: lax.fft(z, "IFFT", (4, 8)), (f(4, 8, dtype="complex64"),), 6),
    ("rfft", lambda x: lax.fft(x, "RFFT", (8,)), (f(3, 8),), 4),
    ("irfft", lambda z: lax.fft(z, "IRFFT", (8,)), (f(5, dtype="complex64"),), 4),
    ("cholesky-3", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), (f(3, 3),), 10),
    ("cholesky-1", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), (f(7, 1, 1),), 4),
    (
        "triangular",
        lambda a, y: lax.linalg.triangular_solve(a, y, left_side=True),
        (f(3, 3), f(3, 2)),
        7,
        "div for the first row, mul, sub, div for the other two: 1 + 3 + 3",
    ),
    (
        "triangular-1",
        lambda a, y: lax.linalg.triangular_solve(a, y, left_side=True),
        (f(1, 1), f(1, 2)),
        1,
        "a division",
    ),
    ("tridiagonal", lax.linalg.tridiagonal_solve, (f(5), f(5), f(5), f(5, 1)), 30),
    ("qr-1", lax.linalg.householder_product, (f(4, 1), f(1)), 11),
)
def test_single_operations(case):
    check(case)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 8, 9, 1023, 1024, 1025])
def test_a_sum_over_any_size(size):
    levels, leaves = 0, 1
    while leaves < size:
        levels, leaves = levels + 1, 2 * leaves
    assert depth.serial_depth(jnp.sum, f(size)) == levels
    assert depth.serial_depth(jnp.dot, f(size), f(size)) == 1 + levels
    assert depth.serial_depth(lax.cumsum, f(size)) == levels
