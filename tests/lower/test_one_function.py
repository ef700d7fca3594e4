"""Loops that a CPU runs as one function: what they may contain, and that they are the loop."""

import importlib
from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.lower import loop
from depth.jaxprs import Program
from tests.problems import assert_agree, normal

L, B, N = 6, 3, 12
MARK = 'xla_cpu_small_call = "true"'
rule = importlib.import_module("deeppcr.lower.cpu.one_function")  # a function, too
copies_matrices = rule.copies_matrices
scan = partial(deeppcr.scan, method="sequential", adjoint="backprop", batch_ndim=1)
W = normal(0, N, N, scale=0.3)
XS, Z = normal(1, L, B, N), normal(2, B, N)
CHANNELS = normal(3, 3, 3, 32, 32, scale=0.1)


def dense(z, x):
    z = jnp.tanh(z @ W + x)
    return z, z


@pytest.fixture(autouse=True)
def _wherever_it_is_possible(monkeypatch):
    """Also where it copies matrices, and where XLA does it by itself."""
    monkeypatch.setattr(rule, "copies_matrices", lambda program, states: False)
    monkeypatch.setattr(rule, "is_hoisted", lambda: False)


def is_marked(f, *operands):
    return MARK in jax.jit(f).lower(*operands).as_text()


def convolve(z, filters, *sizes, **options):
    """Of rows of ``z``, as images ``[*space, features]`` of these sizes."""
    space = "WHD"[: len(sizes) - 1]
    names = ("N" + space + "C", space + "IO", "N" + space + "C")
    images, strides = z.reshape(-1, *sizes), (1,) * len(space)
    moved = jax.lax.conv_general_dilated(
        images, filters, strides, "SAME", dimension_numbers=names, **options
    )
    return moved.reshape(z.shape)


STEPS = {
    "a product of matrices": lambda z, x: jnp.tanh(z @ W + x),
    "one of each example": lambda z, x: jnp.tanh(
        jnp.einsum("bi,bij->bj", z, x[:, :, None] * W[None])
    ),
    "an outer product": lambda z, x: jnp.tanh(jnp.einsum("i,j->ij", z[:, 0], x[0])),
    "reductions": lambda z, x: z / (1 + jnp.abs(z).max(1, keepdims=True)) + x.min() + z.mean(),
    "moves": lambda z, x: jnp.roll(jnp.concatenate([z[:, 1:], x[:, :1]], 1)[:, ::-1], 1, 0) * 0.5,
    "a convolution": lambda z, x: (
        jnp.tanh(convolve(z, W.reshape(-1)[:27].reshape(3, 3, 3), 4, 3)) + x
    ),
    "a convolution with filters of its own": lambda z, x: jnp.tanh(
        convolve(z, x[:, :9].reshape(3, 3, 3), 4, 3, rhs_dilation=(2,))
    ),
    "one along two axes": lambda z, x: (
        jnp.tanh(convolve(z, W[:6, :6].reshape(2, 2, 3, 3), 2, 2, 3)) + x
    ),
    "functions with a rule": lambda z, x: jax.nn.relu(z) * 0.5 + jax.nn.gelu(x) + jax.nn.silu(z),
}


@pytest.mark.parametrize("name", STEPS)
def test_it_is_the_loop(name):
    def step(z, x):
        z = STEPS[name](z, x)
        return z, z

    def loss(scan, z, xs):
        last, zs = scan(step, z, xs)
        return jnp.sum(last * zs[0]) + jnp.sum(zs**2), (last, zs)

    ours = jax.jit(jax.value_and_grad(partial(loss, scan), (0, 1), has_aux=True))
    theirs = jax.jit(jax.value_and_grad(partial(loss, jax.lax.scan), (0, 1), has_aux=True))
    assert is_marked(partial(loss, scan), Z, XS)
    assert_agree(ours(Z, XS), theirs(Z, XS))


def operation(name):
    """Of a state ``[n]`` in 0.1 to 0.9; None where it is part of others."""
    unary = getattr(jax.lax, name, None)
    if name in {"integer_pow", "pow", "max", "min", "rem", "atan2", "div", "mul", "sub", "add"}:
        return (lambda z: z**3) if name == "integer_pow" else lambda z: unary(z, z + 0.5)
    if name in {"eq", "ne", "lt", "le", "gt", "ge"}:
        return lambda z: jnp.where(unary(z, 0.5 * z + 0.2), z, 0.5 * z)
    if name in {"and", "or", "xor"}:
        f = {"and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.logical_xor}[name]
        return lambda z: jnp.where(f(z < 0.5, z > 0.2), z, 0.5 * z)
    if name in {"reduce_and", "reduce_or", "reduce_max", "reduce_min", "reduce_sum"}:
        f = getattr(jnp, {"and": "all", "or": "any"}.get(name[7:], name[7:]))
        return lambda z: z * jnp.asarray(f(z > 0.3 if name[7:] in ("and", "or") else z), z.dtype)
    return {
        "acosh": lambda z: jax.lax.acosh(1 + z),
        "clamp": lambda z: jax.lax.clamp(z * 0 + 0.2, z, z * 0 + 0.8),
        "is_finite": lambda z: jnp.where(jnp.isfinite(z), z, 0.0),
        "not": lambda z: jnp.where(~(z < 0.5), z, 0.0),
        "dynamic_slice": lambda z: z + jax.lax.dynamic_slice(z, (jnp.int32(z[0] > 0.5),), (1,)),
        "dynamic_update_slice": lambda z: jax.lax.dynamic_update_slice(
            z, z[:1] * 0.5, (jnp.int32(z[0] > 0.5),)
        ),
        "gather": lambda z: z + z.at[jnp.int32(z[0] > 0.5)].get(mode="fill", fill_value=0),
        "scatter": lambda z: z.at[jnp.int32(z[0] > 0.5)].set(z[2]),
        "scatter-add": lambda z: z.at[-1].add(z[2]),
        "split": lambda z: jnp.concatenate(jax.lax.split(z, (5, 7))[::-1]),
        "rev": lambda z: z[::-1],
        "pad": lambda z: jax.lax.pad(z[1:], jnp.zeros((), z.dtype), [(1, 0, 0)]),
        "stack": lambda z: jnp.stack([z[:6], z[6:]], 1).reshape(12),
        "tile": lambda z: jnp.tile(z[:6], 2),
        "transpose": lambda z: z.reshape(3, 4).T.reshape(12),
    }.get(name, unary if name in UNARY.split() else None)


UNARY = """
    abs acos asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 floor log log1p
    logistic neg round rsqrt sign sin sinh sqrt square tan tanh
"""
OPERATIONS = {name: f for name in sorted(rule.CONTAINED) if (f := operation(name))}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_operations_compile(dtype):
    """XLA cannot compile such a function if it calls a library: one loop of each operation."""

    def all_of_them(scan, z):
        def runs(f):
            return scan(lambda z, x: ((y := 0.1 + 0.8 * jnp.abs(jnp.sin(f(z)))), y), z, None, 3)[1]

        return {name: runs(f) for name, f in OPERATIONS.items()}

    z = jnp.linspace(0.1, 0.9, 12, dtype=dtype)
    ours = jax.jit(partial(all_of_them, partial(deeppcr.scan, method="sequential")))
    assert ours.lower(z).as_text().count(MARK) >= len(OPERATIONS) > 50
    assert_agree(ours(z), jax.jit(partial(all_of_them, jax.lax.scan))(z))


OTHERS = {
    "sort": (lambda z, x: (jnp.sort(z) * 0.5 + x, z), Z),
    "large product": (
        lambda z, x: (jnp.tanh(z @ jnp.ones((N, 4000))) @ jnp.ones((4000, N)) + x, z),
        Z,
    ),
    "branch": (lambda z, x: (0.5 * z + jax.lax.cond(z[0, 0] > 0, jnp.sin, jnp.cos, x), z), Z),
    "bfloat16": (lambda z, x: (z * 0.5 + x.astype(z.dtype), z), Z.astype(jnp.bfloat16)),
    "two contracted axes": (lambda z, x: (z * 0.5 - jnp.einsum("bi,bi->", z, x) * 0.1 + x, z), Z),
    "convolution": (
        lambda z, x: (z + convolve(jnp.repeat(z, 32, 1), CHANNELS, 3, 4, 32)[:, :N] + x, z),
        Z,
    ),
    "scatter": (lambda z, x: (z.at[jnp.array([0, 2])].add(x[:2]) * 0.5, z), Z),
    "large array": (lambda z, x: (0.5 * jnp.tile(z, 64)[:, :N] + x, z), Z),
    "many products": (lambda z, x: (jnp.tanh(sum(z @ W for _ in range(30)) / 30 + x), z), Z),
}


@pytest.mark.parametrize(("step", "carry"), OTHERS.values(), ids=OTHERS)
def test_others_run_as_they_are(step, carry):
    xs = jnp.asarray(XS, carry.dtype)
    assert not is_marked(partial(scan, step), carry, xs)
    assert_agree(jax.jit(partial(scan, step))(carry, xs), jax.lax.scan(step, carry, xs))


@pytest.mark.parametrize(("features", "outputs", "groups"), [(12, 4, 1), (4, 12, 1), (32, 8, 8)])
def test_short_convolutions_of_a_library_run_as_they_are(features, outputs, groups):
    z, xs = jnp.ones((2, 2, features), "float32"), jnp.ones((L, 1, 1, 1), "float32")
    filters = jnp.full((1, 1, features // groups, outputs), 0.01, "float32")

    def step(z, x):
        moved = jax.lax.conv_general_dilated(
            z[None],
            filters,
            (1, 1),
            "SAME",
            dimension_numbers=("NWHC", "WHIO", "NWHC"),
            feature_group_count=groups,
        )
        z = 0.5 * z + jnp.tanh(moved[0]).sum(2, keepdims=True) * x
        return z, z

    ours = partial(deeppcr.scan, step, method="sequential")
    assert not is_marked(ours, z, xs)
    assert_agree(jax.jit(ours)(z, xs), jax.lax.scan(step, z, xs))


def test_arrays_that_are_constants_of_the_program():
    ours = jax.jit(lambda z: scan(dense, z, XS)[1])
    assert_agree(ours(Z), jax.lax.scan(dense, Z, XS)[1])


def test_derivatives_and_maps_are_those_of_the_loop():
    pushed = [
        jax.jvp(lambda z, scan=scan: scan(dense, z, XS)[1], (Z,), (Z,))
        for scan in (loop, jax.lax.scan)
    ]
    assert_agree(*pushed)
    gradient = jax.grad(lambda z, scan: jnp.sum(scan(dense, z, XS)[1] ** 2))
    assert_agree(gradient(Z, loop), gradient(Z, jax.lax.scan))
    zs = jnp.stack([Z, 2 * Z])
    mapped = jax.jit(jax.vmap(partial(loop, dense), (0, None)))
    assert MARK in mapped.lower(zs, XS).as_text()
    assert_agree(mapped(zs, XS), jax.vmap(partial(jax.lax.scan, dense), (0, None))(zs, XS))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_loop_is_transposed(reverse):
    def along(scan, g):
        return scan(lambda z, x: ((z @ W, z + x)), jnp.zeros((B, N)), g, reverse=reverse)[1]

    ours, theirs = (jax.linear_transpose(partial(along, f), XS)(XS) for f in (loop, jax.lax.scan))
    assert_agree(ours, theirs)


def test_results_that_nobody_reads_are_not_computed():
    lowered = jax.jit(lambda z, xs: scan(dense, z, xs)[0]).lower(Z, XS).as_text()
    assert MARK in lowered
    assert f"tensor<{L}x{B}x{N}xf64> {{" not in lowered.split("func.func private")[-1]


def test_several_devices_run_it_as_it_is():
    mesh = jax.sharding.Mesh(jax.devices()[:3], "b")
    z = jax.device_put(Z, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("b")))
    assert not is_marked(lambda z: scan(dense, z, XS)[1], z)
    assert_agree(jax.jit(lambda z: scan(dense, z, XS)[1])(z), jax.lax.scan(dense, Z, XS)[1])


def test_where_xla_ignores_the_mark_a_warning_says_so(monkeypatch):
    monkeypatch.setattr(rule, "MARK", {"xla_cpu_another_call": "true"})
    monkeypatch.setattr(rule, "is_honoured", cache(rule.is_honoured.__wrapped__))
    with pytest.warns(UserWarning, match="Results are the same"):
        assert not is_marked(partial(scan, dense), Z, XS)
    assert_agree(scan(dense, Z, XS), jax.lax.scan(dense, Z, XS))  # asked only once


def test_a_step_that_reads_matrices_of_its_own_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(rule, "copies_matrices", copies_matrices)
    weights = normal(4, L, N, N)
    assert not is_marked(partial(scan, lambda z, w: (jnp.tanh(z @ w), z)), Z, weights)
    assert is_marked(partial(scan, lambda z, w: (jnp.tanh(z @ w), z)), Z[:1], weights)


def test_each_platform_lowers_the_loop_in_its_own_way():
    traced = jax.jit(partial(scan, dense)).trace(Z, XS)
    for platforms, count in ((["cuda"], 0), (["cpu"], 1), (["cuda", "cpu"], 1), (["tpu"], 0)):
        text = traced.lower(lowering_platforms=tuple(platforms)).as_text()
        assert (MARK in text) == count, platforms


@pytest.mark.parametrize(
    ("step", "copies"),
    [
        (lambda z, x: jnp.tanh(z @ x), True),
        (lambda z, x: jnp.tanh(z @ W + x @ W), False),  # that of inputs is before the loop
        (lambda z, x: jnp.tanh(z[0] @ x), False),
    ],
)
def test_only_products_of_the_state_copy_matrices(step, copies):
    program = Program.of(jax.make_jaxpr(step)(W, W))
    assert copies_matrices(program, 1) is copies
    small = Program.of(jax.make_jaxpr(lambda z, x: z @ x)(W[:, :8], W[:8, :8]))
    assert not copies_matrices(small, 1)


def test_many_scalars_are_one_array_in_the_loop(monkeypatch):
    monkeypatch.setattr(rule.limits, "MAX_INPUTS", 6)

    def step(z, x):
        z = [jnp.tanh(a * b + x) for a, b in zip(z, [*z[1:], z[0]], strict=True)]
        return z, z

    def loss(scan, z):
        last, zs = scan(step, z, XS[:, 0, 0])
        return sum(last) + sum(map(jnp.sum, zs))

    start = list(normal(4, 6))
    few = partial(scan, batch_ndim=0)
    ours, theirs = (jax.jit(jax.value_and_grad(partial(loss, f))) for f in (few, jax.lax.scan))
    read = 18 if jax.__version_info__ >= (0, 12) else 24  # all that its derivative reads
    assert f"tensor<{L}x{read}x" in ours.lower(start).as_text()
    assert_agree(ours(start), theirs(start))


def test_what_xla_compiles_to_one_function_by_itself_is_left_to_it(monkeypatch):
    monkeypatch.undo()
    assert rule.is_hoisted() == (jax.__version_info__ >= (0, 12))
    monkeypatch.setattr(rule, "is_hoisted", lambda: True)
    assert is_marked(partial(scan, dense), Z, XS)
    A = normal(9, 3, 3)
    step = lambda z, x: (A @ z @ A.T + jnp.sin(x), z[0])  # noqa: E731
    assert not is_marked(partial(deeppcr.scan, step), normal(1, 3, 3), normal(2, L, 3, 3))
