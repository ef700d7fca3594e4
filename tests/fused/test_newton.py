"""`Newton(fused=True)` beside `jax.lax.scan`, and beside the iterations without kernels."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton, Result
from tests.fused.gpu import assert_scans, kernels_of, on_a_gpu
from tests.fused.test_kernel import as_users_write_it, gru, numbers  # noqa: F401
from tests.problems import assert_agree, rounding

FUSED = Newton(fused=True)
CELL = gru(2)
LENGTH = 300  # 3 steps in each of 128 chunks, 84 of them added
H, X = numbers(2), numbers(LENGTH, 2)


def step(h, x):
    h = CELL(h, x)
    return h, {"h": h, "y": h[:1] * x}


def solved(method, chain, start, batch_ndim=0):
    return deeppcr.solve(chain, start, method=method, batch_ndim=batch_ndim)


def compared(chain, start, batch_ndim=0, **options):
    """The solutions with kernels and without, of the states of the sequential program."""
    solutions = [
        on_a_gpu(lambda z, m=m: solved(m, chain, z, batch_ndim), start)
        for m in (Newton(fused=True, **options), Newton(**options))
    ]
    expected = jax.jit(lambda z: solved("sequential", chain, z, batch_ndim).trajectory)(start)
    for solution in solutions:
        assert solution.result == Result.CONVERGED
        assert_agree(solution.trajectory, expected, 1e-5)
    return solutions


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    assert_scans(step, FUSED, H, X, reverse)


def test_an_iteration_has_two_kernels():
    # The first iterate takes a pass; then there is a counted loop, and one until convergence.
    assert kernels_of(step, FUSED, H, X) == 1 + 2 + 2


@pytest.mark.parametrize("length", [1, 129])
def test_residuals_and_iterations_are_those_without_kernels(length):
    chain = Chain(CELL, numbers(length, 2))
    fused, plain = compared(chain, H, record=True)
    assert fused.stats.iterations == plain.stats.iterations
    found, expected = fused.stats.residuals, plain.stats.residuals
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-5)


def test_states_of_several_leaves_in_a_batch():
    def cell(z, x):
        return {"a": jnp.tanh(z["a"] + x), "b": jnp.float32(0.5) * z["b"] + z["a"].sum(-1)}

    start = {"a": numbers(3, 2), "b": numbers(3)}
    compared(Chain(cell, numbers(200, 3, 2)), start, batch_ndim=1)
    compared(Chain(cell, numbers(200, 2)), start, batch_ndim=1)  # inputs that examples share


def test_half_precision():
    chain = Chain(lambda z, x: jnp.tanh(z * x[0] + x[1]), numbers(20, 2).astype(jnp.bfloat16))
    start = numbers(2).astype(jnp.bfloat16)
    expected = jax.jit(lambda z: solved("sequential", chain, z).trajectory)(start)
    found = on_a_gpu(partial(solved, FUSED, chain), start)
    assert_agree(found.trajectory, expected, rounding(jnp.bfloat16, 2))


def loss(scan, w, h, x):
    def with_weights(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return jnp.square(scan(with_weights, h, x)[1]).sum()


def test_gradients_and_vmap():
    w, ours = numbers(2, 2), partial(deeppcr.scan, method=FUSED)

    def gradient(scan, w, h, x):
        def total(w, h, x):
            return jax.vmap(partial(loss, scan), (None, 0, 0))(w, h, x).sum()

        return jax.value_and_grad(total, (0, 1, 2))(w, h, x)

    arrays = w, numbers(3, 2), numbers(3, 40, 2)
    expected = jax.jit(partial(gradient, jax.lax.scan))(*arrays)
    assert_agree(on_a_gpu(partial(gradient, ours), *arrays), expected, 1e-5)


OPTIONS = {
    "a guess": {"initial_guess": {"h": numbers(LENGTH, 2)}},
    "a constant guess": {"initial_guess": "constant"},
    "tolerances": {"rtol": 1e-3, "atol": 1e-3},
    "a tolerance for each step": {"atol": np.linspace(1e-4, 1e-3, LENGTH, dtype=np.float32)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    chain = Chain(lambda z, x: {"h": CELL(z["h"], x)}, X)
    fused, plain = (
        on_a_gpu(partial(solved, Newton(**OPTIONS[name], fused=f), chain), {"h": H})
        for f in (True, False)
    )
    assert fused.result == plain.result == Result.CONVERGED
    assert fused.stats.iterations == plain.stats.iterations
    assert_agree(fused.trajectory, plain.trajectory, 1e-4)


def test_an_affine_chain_takes_one_iteration():
    chain = Chain(lambda z, x: x[0] * z + x[1], numbers(LENGTH, 2))
    fused, plain = compared(chain, jnp.float32(0.5))
    assert fused.stats.iterations == plain.stats.iterations == 3  # counted without a test


def test_overflows_and_infinite_slopes():
    """At least one more state is right after each iteration."""

    def f(z, x):  # its slope at 0, where the chain starts, is infinite
        return jnp.sqrt(jnp.abs(z)) * x

    chain = Chain(f, numbers(8, 1))
    compared(chain, np.zeros(1, np.float32))
    growing = Chain(lambda z, x: jnp.exp(z) * x, np.full(12, 1.1, np.float32))
    start = np.float32(0.5)
    expected = jax.jit(lambda z: solved("sequential", growing, z).trajectory)(start)
    found = on_a_gpu(partial(solved, FUSED, growing), start)
    assert not np.isfinite(expected).all()
    np.testing.assert_allclose(found.trajectory, expected, rtol=1e-4)


def test_a_chain_that_does_not_converge_is_finished_sequentially():
    chain = Chain(lambda z, x: jnp.float32(3.9) * z * (1 - z) + x, np.zeros(200, np.float32))
    newton = Newton(fused=True, max_iterations=5)
    found = on_a_gpu(partial(solved, newton, chain), np.float32(0.3))
    assert found.result == Result.FINISHED_SEQUENTIALLY
    assert found.stats.iterations == 5
    expected = jax.jit(partial(solved, "sequential", chain))(np.float32(0.3))
    # Right up to where rounding errors have grown.
    np.testing.assert_allclose(found.trajectory[:30], expected.trajectory[:30], rtol=2e-2)


REFUSED = {
    "wide": (jnp.tanh, numbers(5), 0, "5 entries, of at most 4"),
    "sorted": (lambda z: jnp.sort(jnp.tanh(z)), numbers(3), 0, "sort has no counterpart"),
    "double": (jnp.tanh, numbers(3).astype(np.float64), 0, "float64"),
    "coupled": (lambda z: z - z.mean(0, keepdims=True), numbers(2, 3), 1, "depend on each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_says_why_there_is_no_kernel(name):
    f, start, batch_ndim, reason = REFUSED[name]
    chain = Chain(lambda z, x: f(z), numbers(20))
    for run in (jax.eval_shape, on_a_gpu):
        with pytest.raises(ValueError, match=f"fused=True.*{reason}.*fused=False"):
            run(lambda z: solved(FUSED, chain, z, batch_ndim), start)


def test_memory_is_for_all_steps():
    with pytest.raises(ValueError, match="memory is for 2 of 300 Jacobians"):
        solved(Newton(fused=True, memory=64), Chain(CELL, X), H)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fused": 1}, "fused is 1, expected True or False"),
        ({"linearize": "diagonal"}, 'linearize is "?\'?diagonal.*expected "auto" or "dense"'),
        ({"linear": "pcr"}, "linear is 'pcr', expected 'auto' with fused=True; use fused=False"),
        ({"damping": deeppcr.TrustRegion()}, "damping is TrustRegion.*expected 'auto' or None"),
        ({"jacobian_every": 2}, "jacobian_every is 2, expected 1"),
        ({"window": 5}, "window is 5, expected None"),
        ({"acceleration": deeppcr.Anderson()}, "acceleration is .*Anderson.*expected None"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Newton(**{"fused": True, **options})


def test_auto_does_not_choose_it():
    plan = deeppcr.plan(
        Chain(gru(1), jax.ShapeDtypeStruct((100_000, 2), "float32")), numbers(1), device="H200"
    )
    assert isinstance(plan.method, Newton)
    assert not plan.method.fused
