"""Kernels of a program as the prediction takes them: counts by hand, traffic, and loops."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
from depth.kernels import KernelChoice
from tests.depth.cases import b, f, i, sines


def program(fn, *args, **options):
    return depth.analyze(fn, *args, **options).program


def kinds(program):
    """The kernels of a program by kind, without those of its parts."""
    counts = Counter()
    for kernel, count in program.kernels:
        counts[kernel.kind] += count
    return dict(counts)


def only(program):
    """The one kernel of a program."""
    assert not program.parts
    ((kernel, count),) = program.kernels
    assert count == 1
    return kernel


def part(program):
    """The one part of a program that has no kernels of its own."""
    assert not program.kernels
    ((inner, count),) = program.parts
    assert count == 1
    return inner


def diamond(w, x):
    y = lax.sin(x)
    return lax.tanh(w @ y) + y


def normalized(x):
    y = lax.exp(x)
    return y / jnp.sum(y)


def two_products(w, x):
    return lax.cos(w @ lax.sin(x)) + lax.exp(w @ lax.cos(x))


W, X, Y, D = f(8, 8), f(8), f(4, 8), f(4, 6, dtype="float64")
N, MANY = i(), i(10**6)
ONE, PRODUCT = {"elementwise": 1}, {"elementwise": 2, "product": 1}
COUNTS = {
    "nothing": (lambda x: None, (X,), {}),
    "dead code": (lambda x: (sines(x, 3), x)[1], (X,), {}),
    "chain, product, chain": (lambda w, x: lax.tanh(lax.sin(x) @ w + x), (W, Y), PRODUCT),
    "a reduction and its input": (lambda x, y: jnp.sum(x * y), (X, X), {"reduction": 1}),
    "what follows a reduction": (normalized, (X,), ONE | {"reduction": 1}),
    "a sort": (lambda x: sines(lax.sort(sines(x, 3)), 3), (X,), {"elementwise": 2, "sort": 1}),
    "a cumulative sum": (lambda x: lax.sin(lax.cumsum(x)), (X,), ONE | {"cumulative": 1}),
    "a factorization": (lambda w: lax.linalg.cholesky(w, symmetrize_input=False) * 2, (W,), None),
    "a transposition": (lambda x: x.T, (Y,), {"move": 1}),
    "one integer": (lambda n: n * 2 + 1, (N,), {}),
    "eight integers": (lambda n: n * 2 + 1, (i(8),), ONE),
    "one float": (lambda x: x * 2 + 1, (f(),), ONE),
    "of many integers": (lambda n: lax.reduce_max(n, (0,)), (MANY,), {"reduction": 1}),
    "a place": (lambda x: lax.argmax(x, 0, jnp.int32), (f(10**6),), {"reduction": 1}),
    "whether all hold": (lambda p: lax.reduce_and(p, (0,)), (b(10**6),), {"reduction": 1}),
    "an integer product": (lambda n: lax.dot(n, n), (MANY,), {"vector product": 1}),
    "a diamond": (diamond, (W, X), {"elementwise": 2, "vector product": 1}),
    "products in two arms": (two_products, (W, X), {"elementwise": 3, "vector product": 2}),
    "beside a product": (lambda w, x: w @ x + lax.cos(x), (W, X), ONE | {"vector product": 1}),
    "calls": (jax.jit(lambda x: jax.jit(lax.sin)(x) + jax.nn.relu(x)), (X,), ONE),
    "a callback": (lambda x: jax.pure_callback(lambda x: x, x, x), (X,), {"opaque": 1}),
}


@pytest.mark.parametrize(("fn", "args", "expected"), COUNTS.values(), ids=COUNTS)
def test_kernels_are_counted(fn, args, expected):
    got = program(fn, *args)
    assert got.parts == ()
    if expected is not None:
        assert kinds(got) == expected


PRODUCTS = {
    "matrix, matrix": ("ik,kj->ij", (f(4, 6), f(6, 5)), "product", 1, 240, 296),
    "matrix, vector": ("ik,k->i", (f(4, 6), f(6)), "vector product", 1, 48, 136),
    "outer": ("ik,kj->ij", (f(4, 1), f(1, 5)), "vector product", 1, 40, 116),
    "left transposed": ("ki,kj->ij", (f(6, 4), f(6, 5)), "transposed product", 1, 240, 296),
    "two axes": ("iab,abj->ij", (f(4, 2, 3), f(2, 3, 5)), "product", 1, 240, 296),
    "a batch": ("abik,abkj->abij", (f(3, 3, 4, 6), f(3, 3, 6, 5)), "product", 9, 2160, 2664),
    "of vectors": ("bik,bk->bi", (f(9, 4, 6), f(9, 6)), "vector product", 9, 432, 1224),
    "doubles": ("ik,kj->ij", (D, f(6, 5, dtype="float64")), "product", 1, 240, 592),
}


@pytest.mark.parametrize(
    ("axes", "args", "kind", "pieces", "work", "traffic"), PRODUCTS.values(), ids=PRODUCTS
)
def test_products(axes, args, kind, pieces, work, traffic):
    """Work is 2 for each output and contracted element, times the batch; traffic all arrays."""
    kernel = only(program(lambda x, y: jnp.einsum(axes, x, y), *args))
    found = kernel.kind, kernel.pieces, kernel.operations, kernel.bytes
    moved = (("move", args[0].size),) if kind == "transposed product" else ()
    assert found == (kind, pieces, (*moved, ("product", work)), traffic)
    assert kernel.dtype == args[0].dtype


def sliced(x, *starts):
    return lax.dynamic_slice_p.bind(x, *starts, slice_sizes=(2, 3)[-len(starts) :])


TRAFFIC = {
    "a sine": (lax.sin, (X,), 64),
    "a result on the way": (lambda x: (lax.sin(x), sines(x, 1) + x)[1], (X,), 64),
    "a sum": (lambda x: lax.reduce_sum(lax.sin(x), (0,)), (X,), 36),
    "a slice": (lambda x: lax.slice(x, (2,), (5,)), (f(1000),), 24),
    "a dynamic slice": (sliced, (f(1000), i()), 28),
    "rows": (sliced, (f(1000, 50), i(), i()), 56),
    "an update in place": (lax.dynamic_update_slice_p.bind, (f(1000), f(3), i()), 40),
    "a slice and more": (lambda x, n: lax.sin(sliced(x, n)), (f(1000), i()), 28),
}


@pytest.mark.parametrize(("fn", "args", "expected"), TRAFFIC.values(), ids=TRAFFIC)
def test_traffic(fn, args, expected):
    assert only(program(fn, *args)).bytes == expected


def test_operations_by_class():
    kernel = only(program(lambda x, y: lax.reduce_sum(lax.exp(x) * y + y, (0,)), X, X))
    assert dict(kernel.operations) == {"transcendental": 8, "arithmetic": 16, "reduction": 7}
    assert dict(only(program(lambda x: x.T, Y)).operations) == {"move": 32}
    # Twice 64 moved, and 64 added out of order.
    assert dict(only(program(lambda x: x.T + x.T, W)).operations) == {"move": 192}
    assert dict(only(program(lax.cumsum, X)).operations) == {"cumulative": 8}
    grouped = partial(
        lax.conv_general_dilated, feature_group_count=2, window_strides=(1,), padding="VALID"
    )
    found = dict(only(program(grouped, f(1, 2, 5), f(4, 1, 3))).operations)
    assert found == {"convolution": 72, "expanded": 72}
    assert dict(only(program(lax.sort, X)).operations) == {"cumulative": 24}  # 8 times ceil(log2 8)


def test_what_takes_long_and_is_read_twice_is_a_result_where_each_is_a_kernel_of_its_own():
    kernel = only(program(lambda x: (y := lax.exp(x)) * y + y, X))
    assert (kernel.results, kernel.bytes, kernel.apart) == (2, 64, 128)


def called(size):
    return jax.jit(lambda x: sines(x, size))


def test_small_calls_are_looked_through_and_large_ones_are_parts():
    small, large = called(100), called(400)
    assert dict(only(program(lambda x: small(small(x)), X)).operations) == {
        "transcendental": 8 * 200
    }
    got = program(lambda x: large(large(x)), X)
    assert got.kernels == ()
    ((inner, count),) = got.parts
    assert count == 2
    assert dict(only(inner).operations) == {"transcendental": 8 * 400}


def loop(fn, length):
    return lambda x: lax.scan(lambda x, _: (fn(x), None), x, length=length)[0]


@pytest.mark.parametrize("length", [0, 1, 9, 10**9], ids=str)
def test_a_scan_is_a_loop(length):
    inner = part(program(loop(lax.sin, length), X))
    assert (inner.trips, inner.counted, inner.condition) == (length, True, None)
    assert kinds(inner.body) == {"elementwise": 1}


def scan(step, *xs):
    return part(program(lambda x, xs: lax.scan(step, x, xs), *xs))


def test_a_scan_copies_the_slices_that_a_product_reads_or_makes():
    one = {"product": 1, "elementwise": 1}
    inner = scan(lambda x, w: (lax.sin(x @ w), None), Y, f(7, 8, 8))
    assert kinds(inner.body) == one | {"move": 1}
    moved = [kernel.bytes for kernel, _ in inner.body.kernels if kernel.kind == "move"]
    assert moved == [512]  # w: 64 of 4 bytes, in and out
    inner = scan(lambda x, w: (lax.sin(x), x @ w), Y, f(7, 8, 8))
    assert kinds(inner.body) == one | {"move": 2}
    inner = scan(lambda x, y: (lax.sin(x + y), x), X, f(7, 8))
    assert kinds(inner.body) == {"elementwise": 1}  # slices are read in place


def test_a_while_loop_is_counted_only_if_its_turns_are_proven():
    def counted(x):
        return lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, lax.sin(s[1])), (0, x))[1]

    def until(x):
        return lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x)

    inner = part(program(counted, X))
    assert (inner.trips, inner.counted) == (9, True)
    assert kinds(inner.condition) == {}  # one integer
    assert kinds(inner.body) == {"elementwise": 1}
    for trips in (None, 0, 7):
        inner = part(program(until, X, trip_counts=trips))
        assert (inner.trips, inner.counted) == (trips or 0, False)
        assert sum(kinds(inner.condition).values()) == 1  # a comparison of a float


def test_a_branch_is_a_choice():
    inner = part(program(lambda p, x: lax.cond(p, lambda x: x @ x, lax.sin, x), b(), W))
    assert isinstance(inner, KernelChoice)
    assert sorted(map(str, map(kinds, inner.programs))) == ["{'elementwise': 1}", "{'product': 1}"]
    inner = part(program(lambda n, x: lax.switch(n, [lax.sin, lax.cos, lambda x: x], x), N, X))
    assert sorted(len(p.kernels) for p in inner.programs) == [0, 1, 1]


@pytest.mark.parametrize("length", [256, 1024, 4096], ids=str)
def test_a_tree_is_as_many_kernels_as_levels(length):
    got = program(lambda x: lax.associative_scan(lax.add, x), f(length))
    levels = 2 * (length.bit_length() - 1)  # up and down again
    assert levels <= sum(count for _, count in got.kernels) <= 3 * levels
    assert got.parts == ()


def test_a_step_keeps_arrays_that_it_also_uses():
    def step(x, y):
        z = jnp.sin(x + y)
        return z, (z, y * 2)

    loop = program(lambda x, y: lax.scan(step, x, y), X, f(9, 8)).parts[0][0]
    assert loop.body.stacks == (32,)  # the state, and not what is only kept
    assert (loop.body.read, loop.body.written) == (32, 2 * 32)
