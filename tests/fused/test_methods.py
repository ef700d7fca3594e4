"""`Sequential(fused=True)` and backpropagation as kernels, beside `jax.lax.scan`."""

from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import Chain, Newton, Sequential
from deeppcr.lower.variants import compiled_for
from tests.fused.gpu import assert_scans, kernels_of, on_a_gpu, program_on_a_gpu
from tests.fused.test_kernel import L, as_users_write_it, gru, numbers  # noqa: F401
from tests.problems import assert_agree

FUSED = Sequential(fused=True)
CELL = gru(3)
H, X = numbers(3), numbers(L, 2)
W = numbers(3, 3)


def step(h, x):
    h = CELL(h, x)
    return h, {"h": h, "y": h[:1] * x}


def with_weights(w, h, x):
    h = jnp.tanh(h @ w + x[:1])
    return h, h


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    assert_scans(step, FUSED, H, X, reverse)


def test_the_program_for_a_gpu_has_one_kernel():
    assert kernels_of(step, FUSED, H, X) == 1


def loss(scan, w, h, x):
    return jnp.square(scan(partial(with_weights, w), h, x)[1]).sum()


@pytest.mark.parametrize(("count", "n"), [(2, 20), (33, 3)])
def test_examples_and_their_gradients(count, n):
    ours = partial(deeppcr.scan, method=FUSED, adjoint="backprop")

    def total(scan, w, h, x):
        return jax.vmap(partial(loss, scan), (None, 0, 0))(w, h, x).sum()

    arrays = numbers(n, n) * n**-0.5, numbers(count, n), numbers(count, L, 2)
    gradient = partial(jax.value_and_grad(total, (1, 2, 3)))
    expected = jax.jit(partial(gradient, jax.lax.scan))(*arrays)
    program, found = program_on_a_gpu(partial(gradient, ours), *arrays)
    assert_agree(found, expected, 1e-5)
    assert program.count("kernel=fused_scan") == 2


def test_second_derivatives():
    def slope(scan, h):
        return jax.grad(lambda h: jax.grad(lambda h: loss(scan, W, h, X))(h).sum())(h)

    ours = partial(deeppcr.scan, method=FUSED, adjoint="backprop")
    expected = jax.jit(partial(slope, jax.lax.scan))(H)
    assert_agree(on_a_gpu(partial(slope, ours), H), expected, 1e-4)


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (lambda h, x: (jnp.sort(h), None), "fused=True.*sort has no counterpart.*fused=False"),
        (lambda h, x: (jax.debug.print("{}", h), (h, None))[1], "fused=True.*side effects"),
    ],
)
def test_it_says_why_there_is_no_kernel(f, reason):
    for run in (jax.eval_shape, on_a_gpu):
        with pytest.raises(ValueError, match=reason):
            run(partial(deeppcr.scan, f, method=FUSED), H, X)


@pytest.mark.parametrize("method", [Sequential, Newton])
def test_bad_options(method):
    with pytest.raises(TypeError, match="fused is 1, expected True or False"):
        method(fused=1)


@pytest.mark.parametrize(
    "options",
    [
        {"linearize": "dense"},
        {"linear": "pcr"},
        {"initial_guess": "constant"},
        {"initial_guess": numbers(L, 3)},
        {"damping": deeppcr.TrustRegion()},
        {"window": 4},
        {"record": True},
        {"progress": True},
        {"on_failure": "return"},
    ],
)
def test_one_kernel_has_few_options(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"{name} is .*, but fused=True: .*; expected .*fused=F"):
        Newton(fused=True, **options)
    Newton(fused=True, rtol=1e-3, atol=1e-6, max_iterations=4)


@jax.custom_jvp
def straight_through(h):
    return jnp.floor(h)


straight_through.defjvp(lambda h, t: (straight_through(*h), *t))


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (lambda h, x: jnp.sort(h), "sort has no counterpart"),
        (
            lambda h, x: h[0] + jnp.cumsum(jnp.concatenate([h] * 6))[:17],
            "17 entries, of at most 16",
        ),
        (lambda h, x: (0.5 * h).astype(jnp.bfloat16), "shorter than float32"),
        (lambda h, x: straight_through(h) + x[:1], "a derivative of its own"),
    ],
)
def test_it_says_why_a_solve_is_no_kernel(f, reason):
    start = {
        "17 entries, of at most 16": numbers(17),
        "shorter than float32": H.astype(jnp.bfloat16),
    }
    for run in (jax.eval_shape, on_a_gpu):
        with pytest.raises(
            ValueError, match=f"fused=True, but this chain cannot .*{reason}.*fused=F"
        ):
            run(
                partial(deeppcr.scan, lambda h, x: (f(h, x), None), method=Newton(fused=True)),
                start.get(reason, H),
                X,
            )


@pytest.mark.parametrize("method", ["auto", "newton", Newton(), Newton(linear="auto", rtol=1e-3)])
@pytest.mark.parametrize("adjoint", ["auto", deeppcr.Adjoint()])
def test_by_default_no_solve_is_one_kernel(method, adjoint):
    def total(scan, h, x):
        return loss(partial(scan, method=method, adjoint=adjoint), W, h, x)

    with compiled_for("cuda"):
        program = str(jax.make_jaxpr(jax.grad(partial(total, deeppcr.scan), (0, 1)))(H, X))
    assert "kernel=fused_solve" not in program


def test_a_solve_and_its_adjoint_are_one_kernel_each_if_asked_for():
    def total(adjoint, h, x):
        scan = partial(deeppcr.scan, method=Newton(fused=True), adjoint=adjoint)
        return loss(scan, W, h, x)

    for adjoint, count in {deeppcr.Adjoint(): 2, deeppcr.Adjoint(linear="pcr"): 1}.items():
        for platform, solves in {"cuda": count, "cpu": 0}.items():
            with compiled_for(platform):
                program = str(jax.make_jaxpr(jax.grad(partial(total, adjoint), (0, 1)))(H, X))
            assert program.count("kernel=fused_solve") == solves


def test_it_finishes_what_newtons_method_does_not():
    def chaotic(z, x):
        return jnp.float32(3.7) * z * (1 - z) + 0 * x, z

    start, xs = jnp.full(2, 0.3, jnp.float32), numbers(16, 2)
    newton = Newton(max_iterations=2)
    ours = partial(deeppcr.scan, chaotic, method=newton)
    expected = jax.jit(partial(jax.lax.scan, chaotic))(start, xs)
    assert_agree(on_a_gpu(ours, start, xs), expected, 1e-2)  # which amplifies rounding
    assert kernels_of(chaotic, newton, start, xs) == 1
    many = jax.vmap(ours)(jnp.stack([start, start]), jnp.stack([xs, xs]))
    assert_agree(jax.tree.map(lambda z: z[1], many), expected, 1e-2)


def test_auto_takes_it_where_it_is_the_fastest():
    shape = jax.ShapeDtypeStruct((500, 2), "float32")
    plan = deeppcr.plan(Chain(CELL, shape), H, device="H200")
    assert plan.method.fused
    unknown = Chain(lambda h, x: jnp.sort(0.5 * h) + x[:1], shape)
    assert "fused" not in str(deeppcr.plan(unknown, H, device="H200"))


def test_a_plan_says_why_a_gpu_runs_no_kernels(monkeypatch):
    for name in ("deeppcr.lower.gpu.fused.nvrtc", "deeppcr.planning.plan"):
        monkeypatch.setattr(import_module(name), "obstacle", lambda: "no compiler")
    shape = jax.ShapeDtypeStruct((500, 2), "float32")
    plan = deeppcr.plan(Chain(lambda h, x: jnp.tanh(h + x[:1]), shape), H, device="H200")
    assert ("fused" in str(plan), "no compiler" in str(plan)) == (False, True)
