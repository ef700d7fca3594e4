"""Programs that call programs: wrappers, kernels, devices, references, derivatives, batches."""

import time
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import depth
from tests.depth.cases import Case, check, f, i, sines, table

P = PartitionSpec
twice = jax.jit(lambda x: sines(x, 2))
each = jax.jit(lambda x, y: (x, jnp.sin(y)))


@jax.custom_jvp
def own_jvp(x):
    return sines(x, 3)


@own_jvp.defjvp
def _rule(primals, tangents):
    return own_jvp(*primals), sines(*tangents, 7)


@jax.custom_vjp
def own_vjp(x):
    return sines(x, 3)


own_vjp.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda kept, g: (kept * g,))


@jax.custom_batching.custom_vmap
def own_vmap(x):
    return sines(x, 2)


@own_vmap.def_vmap
def _batched(size, in_batched, x):
    return sines(x, 5), in_batched[0]


def linear_solve(x):
    return lax.custom_linear_solve(lambda y: sines(y, 9), x, lambda matvec, y: 1 / (3 * y))


def root(x):
    return lax.custom_root(
        lambda y: y * y - x, x, lambda fn, y: y - fn(y), lambda fn, y: sines(y, 9)
    )


def divide(x, y):
    return jax.custom_derivatives.linear_call(lambda x, y: y / x, lambda x, g: g / x, x, y)


@table(
    ("jit", twice, (f(8),), 2, "the program: 2"),
    ("other-way", lambda x, y: each(x, sines(y, 5)), (f(8), f(8)), (0, 6), "input 0; 5 + sin 1"),
    ("literal-operand", lambda x: each(2.0, x), (f(8),), (0, 1), "literal 0; sin 1"),
    ("remat", jax.checkpoint(lambda x: sines(x, 2)), (f(8),), 2, "the program: 2"),
    ("custom-jvp", own_jvp, (f(8),), 3, "the function: 3"),
    ("custom-jvp-used", lambda x: jax.jvp(own_jvp, (x,), (x,)), (f(8),), (3, 7)),
    ("custom-vjp-used", jax.grad(own_vjp), (f(),), 2, "forward cos 1, backward mul 1"),
    ("linear-solve-late", lambda x: linear_solve(sines(x, 3)), (f(8),), 5, "3 + mul 1 + div 1"),
    ("root", root, (f(8),), 3, "solve alone: mul 1, sub 1, sub 1"),
    ("custom-vmap", own_vmap, (f(8),), 2, "the function: 2"),
    ("custom-vmap-used", jax.vmap(own_vmap), (f(8),), 5, "the rule: 5"),
    ("linear-call-late", lambda x, y: divide(sines(x, 3), y), (f(8), f(8)), 4, "3 + div 1"),
)
def test_calls(case):
    check(case)


@table(
    ("jvp", lambda x, t: jax.jvp(jnp.sin, (x,), (t,)), (f(8), f(8)), (1, 2)),
    ("grad-of-remat", jax.grad(jax.checkpoint(lambda x: sines(x, 2))), (f(),), 4),
    ("vmap-sum", jax.vmap(jnp.sum), (f(99, 8),), 3, "a batch axis more: 3"),
    ("vmap-psum", jax.vmap(lambda x: lax.psum(x, "row"), axis_name="row"), (f(8),), 3),
    ("vmap-mean", jax.vmap(lambda x: lax.pmean(x, "row"), axis_name="row"), (f(8),), 4),
)
def test_derivatives_and_batches(case):
    check(case)


def on_devices(fn, in_specs, out_specs, **axes):
    """``fn`` on every device of a mesh that need not exist."""
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


RING = [(n, (n + 1) % 8) for n in range(8)]


@table(
    ("psum-8", on_devices(lambda x: lax.psum(x, "d"), P("d"), P(), d=8), (f(8),), 3),
    ("pmax", on_devices(lambda x: lax.pmax(x, "d"), P("d"), P(), d=8), (f(8),), 3, "ceil(log2 8)"),
    ("pmin", on_devices(lambda x: lax.pmin(x, "d"), P("d"), P(), d=9), (f(9),), 4, "ceil(log2 9)"),
    ("scatter", on_devices(lambda x: lax.psum_scatter(x, "d"), P(), P(), d=8), (f(8),), 3),
    ("gather", on_devices(lambda x: lax.all_gather(jnp.sin(x), "d"), P("d"), P(), d=8), (f(8),), 1),
    ("ring", on_devices(lambda x: lax.ppermute(x, "d", RING) + x, P("d"), P("d"), d=8), (f(8),), 1),
    ("which", on_devices(lambda x: x + lax.axis_index("d"), P("d"), P("d"), d=8), (i(8),), 1),
)
def test_devices(case):
    check(case)


def written_whole(x, y):
    ref = jax.new_ref(sines(x, 5))
    ref[...] = jnp.sin(y)
    return ref[...]


def written_in_part(x, y):
    ref = jax.new_ref(sines(x, 5))
    ref[2:4] = y
    return ref[...]


def read_before_and_after(x):
    ref = jax.new_ref(x)
    before = ref[...]
    ref[...] = sines(ref[...], 2)
    ref[...] += 1.0
    return before, ref[...]


def added_to(x, y):
    ref = jax.new_ref(x)
    jax.ref.addupdate(ref, ..., sines(y, 2))
    return jax.ref.freeze(ref)


def written_by_a_call(x):
    ref = jax.new_ref(x)

    @jax.jit
    def write(value):
        ref[...] = jnp.sin(ref[...]) + value

    write(x)
    write(x)
    return ref[...]


def read_in_a_branch(x):
    ref = jax.new_ref(sines(x, 4))
    return lax.cond(x[0] > 0, lambda: ref[...], lambda: jnp.sin(ref[...]))


def swapped(x, y):
    ref = jax.new_ref(x)
    return jax.ref.swap(ref, ..., sines(y, 3)), ref[...]


@table(
    ("set", written_whole, (f(8), f(8)), 1, "what was there is gone: sin 1"),
    ("set-in-part", written_in_part, (f(8), f(2)), 5, "the rest is kept: 5"),
    ("order", read_before_and_after, (f(8),), (0, 3), "read before: 0; then sin sin 2, add 1"),
    ("add", added_to, (f(8), f(8)), 3, "2 + add 1"),
    ("in-a-call", written_by_a_call, (f(8),), 4),
    ("in-a-branch", read_in_a_branch, (f(8),), 5, "4 + sin 1; the index is ready at 2"),
    ("swap", swapped, (f(8), f(8)), (0, 3), "what comes out was there before: 0; what went in: 3"),
)
def test_references(case):
    check(case)


@pytest.fixture
def pallas():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("jax.experimental.pallas", exc_type=ImportError)


def two_sines(source, target):
    target[...] = sines(source[...], 2)


def sum_and_copy(left, right, total, same):
    total[...] = left[...] + jnp.sin(right[...])
    same[...] = left[...]


def looped(source, target):
    target[...] = lax.fori_loop(0, 10, lambda _, x: jnp.sin(x), source[...])


def test_kernels(pallas):
    def kernel(body, results=1):
        return pallas.pallas_call(body, out_shape=[f(8)] * results, interpret=True)

    check(Case("kernel", kernel(two_sines), (f(8),), 2, "the body: 2"))
    check(Case("late", lambda x: kernel(two_sines)(sines(x, 3)), (f(8),), 5, "3 + the body 2"))
    check(Case("loop", kernel(looped), (f(8),), 10, "10 trips of sin 1"))
    both = kernel(sum_and_copy, 2)
    check(
        Case(
            "two",
            lambda x, y: both(sines(x, 4), y),
            (f(8), f(8)),
            (5, 4),
            "max(4, sin 1) + add 1; the copy 4",
        )
    )


def test_a_grid_is_a_lower_bound(pallas):
    spec = pallas.BlockSpec((2,), lambda n: (n,))
    grid = pallas.pallas_call(
        two_sines, out_shape=f(8), grid=(4,), in_specs=[spec], out_specs=spec, interpret=True
    )
    cost = check(Case("grid", grid, (f(8),), 2, "the body at least: 2"), exact=False)
    assert [unknown.primitive for unknown in cost.unknown] == ["pallas_call"]
    assert cost.work == 4 * 2 * 2  # in all steps


def test_forty_doublings_answer_at_once():
    fn = jnp.sin
    for _ in range(40):
        fn = jax.jit(lambda x, fn=fn: fn(fn(x)))
    start = time.perf_counter()
    cost = check(Case("2^40 sines", fn, (f(8),), 2**40, "doubled 40 times"))
    assert time.perf_counter() - start < 10
    assert [(row.primitive, row.count) for row in cost.critical_path] == [("sin", 2**40)]
    assert cost.work == 8 * 2**40


def test_a_program_for_every_platform_counts_as_the_one_that_runs_here():
    def cumsum(x):
        return lax.scan(lambda total, x: (total + x, total + x), jnp.zeros_like(x[0]), x)[1]

    def doubled(x):
        return 2 * x

    x = jnp.ones(100)
    assert (
        depth.serial_depth(lambda x: lax.platform_dependent(x, default=doubled, cuda=cumsum), x)
        == 1
    )
    assert (
        depth.serial_depth(lambda x: lax.platform_dependent(x, cpu=cumsum, default=doubled), x)
        == 100
    )
    assert (
        depth.analyze(lambda x: lax.platform_dependent(x, default=doubled, cuda=cumsum), x).work
        == 100
    )


def test_the_work_of_every_device_counts():
    program = on_devices(jnp.sin, P("i"), P("i"), i=8)
    assert depth.analyze(program, f(8, 4)).work == 8 * 4
    assert depth.analyze(on_devices(jnp.sin, P(), P(), i=8), f(8, 4)).work == 8 * 8 * 4
