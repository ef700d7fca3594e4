"""A solve in one kernel gives the states of `jax.lax.scan`, and says how it found them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import deeppcr
from deeppcr.lower.gpu.fused import SolvedBelow, limits, windows
from deeppcr.lower.gpu.fused.operations import CannotFuse
from tests.fused.emulator import launch
from tests.fused.gpu import on_a_gpu, program_on_a_gpu
from tests.fused.test_kernel import (  # noqa: F401
    as_users_write_it,
    fused,
    gru,
    layer,
    masked,
    numbers,
    para_gru,
    random_step,
)
from tests.problems import assert_agree

L, BELOW = 150, SolvedBelow(iterations=40)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, request):
    """Few threads are emulated, in blocks of some warps."""
    if "GRU of 1" not in request.node.name:
        small = {width: (threads // 4, steps) for width, (threads, steps) in limits.WINDOWS.items()}
        monkeypatch.setattr(limits, "WINDOWS", small)


def solved(step, length, reverse=False, cluster=1):
    """The states, iterations, states before a fallback, and largest residual of each example."""
    step, (states, inputs, captured) = fused(*step)
    kernel = windows.kernel_of(step, length, reverse, BELOW, cluster)
    operands = step.read([*states, *inputs, *captured])
    kinds = [(x.shape, x.dtype) for x in (z.aval for z in step.program.outvars)]
    kinds = [((length, *shape), dtype) for shape, dtype in kinds]
    kinds += [((step.count,), dtype) for dtype in (np.int32, np.int32, np.float32)]
    results = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
    found = launch(kernel, results, *operands)
    return found[:-3], *found[-3:]


def expected(f, z, xs, batch_ndim=0, reverse=False):
    states = lax.scan(lambda z, x: (f(z, x),) * 2, z, xs, reverse=reverse)[1]
    return jax.tree.leaves(states)


def inputs(*shape, length=L):
    return numbers(length, *shape)


def uneven(z, x):
    a, b = z["a"], z["b"]
    after = jnp.concatenate([jnp.sin(a[3:]), b[1:] * a[:2], jnp.cumsum(b)])[:5]
    return {"a": 0.5 * after, "b": jnp.cos(a[::2] + x.sum())}


uneven_state = {"a": numbers(5), "b": numbers(3)}
SIZES = np.float32([1e6, 1, 1e-6])
CASES = {
    "GRU of 1": (gru(1), numbers(1), inputs(2)),
    "GRU of 4": (gru(4), numbers(4), inputs(2)),
    "several batch axes": (gru(2), numbers(2, 1, 3, 2), inputs(2, 1, 3, 2), 3),
    "weights of each step": (layer, numbers(8), {"w": inputs(8, 8) / 2, "b": inputs(8)}),
    "pytrees": (
        masked,
        {"a": numbers(2, 1, 3), "b": numbers(2, 1)},
        {"keep": inputs(3), "u": inputs(2, 1, 3), "go": np.arange(2 * L).reshape(L, 2) % 3 > 0},
        1,
    ),
    "a chain for each entry": (para_gru(40), numbers(2, 40), inputs(2, 2), 1),
    "many side by side": (para_gru(50), numbers(2, 50), inputs(2, 2, length=40), 1),
    "entries of very different size": (
        lambda z, x: SIZES * jnp.tanh((z / SIZES) @ numbers(3, 3) + x),
        numbers(3),
        inputs(3),
    ),
    "GRU of 12": (gru(12), numbers(3, 12), inputs(3, 2, length=60), 1),
    "lanes of several leaves": (uneven, uneven_state, inputs(2) / 2),
    "integrator": (lambda z, x: z + np.float32(0.01) * jnp.sin(z) + x, numbers(1), inputs(1)),
}


@pytest.mark.parametrize("name", CASES)
def test_states_are_those_of_the_sequential_program(name, monkeypatch):
    monkeypatch.setattr(limits, "MANY_EXAMPLES", 90)
    case = CASES[name]
    length = len(jax.tree.leaves(case[2])[0])
    found, iterations, reached, residual = solved(case, length)
    for own, wanted in zip(found, expected(*case), strict=True):
        size = np.abs(wanted).max(0)
        np.testing.assert_allclose(own / size, wanted / size, atol=2e-5)
    assert (iterations <= 20).all()
    assert (reached == length).all()
    assert (residual <= 1000 * np.finfo(np.float32).eps).all()


@pytest.mark.parametrize(
    ("length", "cluster", "reverse"),
    [(1, 1, True), (2, 4, False), (65, 1, False), (700, 1, True), (700, 4, True)],
)
@pytest.mark.parametrize("n", [2, 6])
def test_windows_and_clusters(length, cluster, reverse, n, monkeypatch):
    """A window has 64 steps in each block of a cluster."""
    monkeypatch.setattr(limits, "WINDOWS", {2: (32, 2), 6: (128, 4)})
    case = gru(n), numbers(3, n), inputs(3, 2, length=length), 1
    found, iterations, reached, _ = solved(case, length, reverse, cluster)
    assert_agree(found, expected(*case, reverse=reverse), 2e-5)
    assert (reached == length).all()
    assert (iterations <= 8 * -(-length // (64 * cluster))).all()


@pytest.mark.parametrize("first", [0, 37])
def test_random_steps(first):
    for k, (*batch, n) in enumerate([(1,), (3,), (2, 2), (4,), (3, 1), (7,), (2, 9)]):
        case = random_step(first + k, n), numbers(*batch, n), inputs(*batch, n), len(batch)
        assert_agree(solved(case, L)[0], expected(*case), 2e-5)


MIXED = (np.eye(5) + 0.1 * np.ones((5, 5))).astype(np.float32) / np.float32(1.5)
FALLS_BACK = {
    "chaotic": (lambda z, x: np.float32(3.9) * z * (1 - z) + 0 * x, np.float32([0.3]), inputs(1)),
    "overflows": (lambda z, x: 2 * z * z + x, np.float32([1.0]), inputs(1)),
    "chaotic, of lanes": (
        lambda z, x: np.float32(3.9) * (z @ MIXED) * (1 - z @ MIXED) + 0 * x,
        np.linspace(0.3, 0.35, 5, dtype=np.float32),
        inputs(5),
    ),
    "not a number": (lambda z, x: jnp.tanh(z) + x, numbers(1), np.where(np.arange(L) == 70, np.nan, 1.0).astype(np.float32)[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", FALLS_BACK)
def test_what_does_not_converge_is_computed_step_by_step(name, monkeypatch):
    monkeypatch.setattr(limits, "WINDOWS", {1: (32, 2), 5: (256, 2)})
    found, _, reached, _ = solved(FALLS_BACK[name], L)
    np.testing.assert_array_equal(reached, 64 if name == "not a number" else 0)
    # As exact as the rounding of two compilers, which a chaotic chain amplifies.
    (ours,), (theirs,) = found, expected(*FALLS_BACK[name])
    np.testing.assert_allclose(ours[:20], theirs[:20], rtol=1e-3)
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))


@pytest.mark.parametrize("size", [1e3, 1e9])
@pytest.mark.parametrize("growth", [1.2, 2.0])
def test_sizes_are_not_those_of_guesses_that_were_far_off(size, growth):
    """Linearised at the start, the second entry grows beyond all bounds; the first is large."""
    size, growth = np.float32(size), np.float32(growth)

    def logistic_growth(z, x):
        after = growth * z[1] / (1 + (growth - 1) * z[1])
        return jnp.stack([np.float32(0.9) * z[0] + np.float32(0.1) * size, after + x[0]])

    case = logistic_growth, np.array([size, 1e-3], np.float32), np.zeros((L, 1), np.float32)
    (found,), _, reached, _ = solved(case, L)
    np.testing.assert_allclose(found, expected(*case)[0], rtol=5e-6)
    assert reached == L


def test_integers_have_no_derivative_but_their_own_values():
    """Of a step: they are not taken for 0, as tangents are."""

    def step(z, x):
        k = jnp.abs(lax.floor(4 * x).astype(np.int32) + z.astype(np.int32))
        k = jnp.maximum(k, 0) + jnp.clip(k, 0, 9) - lax.div(0 * k, k + 1)
        return jnp.tanh(z + x) * k.astype(np.float32) / 10

    case = step, numbers(2), inputs(2)
    (found,), iterations, reached, _ = solved(case, L)
    np.testing.assert_allclose(found, expected(*case)[0], atol=1e-5)
    assert (reached == L).all()
    assert (iterations <= 6).all()


def at(*steps, width=1):
    """Inputs that are 0 but at these steps."""
    x = np.zeros((L, width), np.float32)
    for step, value in steps:
        x[step, 0] = value
    return x


HALF, INF = np.float32(0.5), np.float32(np.inf)
BEYOND = {
    "from a step on": (lambda z, x: HALF * z + 1 + x, [0], at((70, -INF))),
    "from the start": (lambda z, x: HALF * z + 1 + x, [INF], at()),
    "of either sign": (lambda z, x: x - z, [0], at((3, INF))),
    "and back": (lambda z, x: jnp.tanh(z) + x, [0], at((50, INF), (51, -INF), (90, INF))),
    "by overflow": (lambda z, x: jnp.where(x > 0, x, 4 * z), [1], at((100, 1.0))),
    "of one entry": (
        lambda z, x: jnp.stack([HALF * z[0] + z[1], jnp.where(x[0] > 0, -INF, HALF * z[1])]),
        [0, 1],
        at((50, 1.0)),
    ),
    "no number, of one entry": (
        lambda z, x: jnp.stack([HALF * z[0] + 1, jnp.sin(z[1]) + x[0]]),
        [0, 0],
        at((50, np.nan)),
    ),
    "beside the others": (lambda z, x: jnp.stack([jnp.tanh(z[0] + HALF), 3 * z[1] + 1]), [0, 1], at()),
    "of a slope": (lambda z, x: jnp.sqrt(jnp.abs(z)) * (1 - x), [1], at((20, 1.0))),
    "of lanes": (lambda z, x: HALF * z + x @ np.ones((5, 5), np.float32), [0] * 5, at((70, INF), width=5)),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_numbers_that_are_not_finite_never_count_as_converged(name):
    step, start, xs = BEYOND[name]
    case = step, np.array(start, np.float32), xs
    (found,) = solved(case, L)[0]
    np.testing.assert_allclose(found, expected(*case)[0], rtol=1e-5)


def test_what_is_refused():
    with pytest.raises(CannotFuse, match="17 entries, of at most 16"):
        solved((lambda z, x: jnp.cumsum(z), numbers(17), inputs(1)), L)


W = numbers(2, 2, 2)


def cell(w, h, x):
    h = jnp.tanh(h @ w[0] + x) * jax.nn.sigmoid(h @ w[1])
    return h, {"y": h * x}


def loss(scan, w, h, xs):
    last, ys = scan(partial(cell, w), h, xs)
    return (ys["y"] ** 2).sum() + last.sum()


FUSED = deeppcr.Newton(fused=True)
OURS = partial(deeppcr.scan, method=FUSED, adjoint=deeppcr.Adjoint())
STEPS = partial(deeppcr.scan, method=deeppcr.Sequential(fused=True), adjoint="backprop")
AROUND = {
    "gradient": (lambda f: jax.value_and_grad(f, (0, 1, 2)), ()),
    "of examples": (lambda f: jax.vmap(jax.value_and_grad(f, (0, 1)), (None, 0, 0)), (3,)),
    "second": (lambda f: jax.grad(lambda *a: (jax.grad(f, 1)(*a) ** 2).sum(), (0, 2)), ()),
    "tangent": (lambda f: lambda w, h, xs: jax.jvp(partial(f, w), (h, xs), (h, xs)), ()),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize(
    ("ours", "kernel"), [(OURS, "kernel=fused_solve"), (STEPS, "kernel=fused_scan")]
)
def test_derivatives(ours, kernel, name):
    (around, batch), reverse = AROUND[name], name == "gradient"
    arrays = W, numbers(*batch, 2), numbers(*batch, L, 2)
    ours, theirs = (partial(loss, partial(s, reverse=reverse)) for s in (ours, lax.scan))
    program, found = program_on_a_gpu(around(ours), *arrays)
    assert_agree(found, jax.jit(around(theirs))(*arrays), 1e-4)
    assert program.count(kernel) >= {"gradient": 2, "of examples": 2}.get(name, 1)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_solution_says_how_it_was_found(mapped):
    def solve(h, xs):
        chain = deeppcr.Chain(lambda h, x: cell(W, h, x)[0], xs)
        return deeppcr.solve(chain, h, method=FUSED)

    batch = (3,) if mapped else ()
    arrays = numbers(*batch, 2), numbers(*batch, L, 2)
    own = on_a_gpu(jax.vmap(solve) if mapped else solve, *arrays)
    other = (jax.vmap(solve) if mapped else solve)(*arrays)
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, other)
    assert_agree(own.trajectory, other.trajectory, 1e-5)
    assert own.converged.all()
    assert (own.stats.iterations <= 8).all()
    if not mapped:
        assert "newton" in str(own)


def test_what_was_finished_step_by_step_is_reported():
    def solve(z, xs):
        return deeppcr.solve(deeppcr.Chain(FALLS_BACK["chaotic"][0], xs), z, method=FUSED)

    found = on_a_gpu(solve, *FALLS_BACK["chaotic"][1:])
    assert int(found.result) == deeppcr.Result.FINISHED_SEQUENTIALLY
    assert int(found.stats.prefix) == 0
