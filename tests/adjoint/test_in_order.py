"""Derivatives by loops, whole or in halves: those of `jax.lax.scan`, from programs of its size."""

import gc
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from deeppcr.adjoint import Backpropagation
from deeppcr.adjoint.tangents import Moves, StepTangents
from deeppcr.arrays import StateLayout
from deeppcr.chain.trace import trace
from deeppcr.structure.find import find_structure
from tests.problems import assert_agree, normal

L, N, BATCH = 20, 3, 2
Z, XS, W = normal(0, BATCH, N), normal(1, L, BATCH, N), normal(2, N, N, scale=0.5)
OWN, TABLE, FILTER = normal(3, L, N, N, scale=0.5), normal(4, 5, N), normal(5, L, 3, 1, 1)
ADJOINTS = {"at once": Backpropagation(), "in one loop": Backpropagation(at_once=False)}


def readout(w, z, x):
    new = jnp.tanh(z @ w + x)
    return new, jnp.sum(new @ w.T, -1)


def keys_out(w, carry, x):
    key, z = carry
    key, used = jax.random.split(key)
    z = jnp.tanh(z @ w + x) * jax.random.uniform(used, (BATCH, N))
    return (key, z), {"key": used, "flag": z.sum() > 0, "y": z.sum(-1)}


def partly_read(w, carry, x):
    count, (long, short), total = carry
    long, short = jnp.tanh(long @ w + x), short * jnp.cos(long)
    return (count + 1, (long, short), total + x.sum()), {"y": short, "count": count}


def loop_inside(w, z, x):
    z = lax.scan(lambda z, row: (jnp.sin(z + z @ w + row), None), z, jnp.stack([x, 2 * x]))[0]
    return z, z.sum(-1)


def looked_up(w, z, x):
    index = jnp.int32(jnp.floor(jnp.abs(lax.stop_gradient(x[0, 0])) * 3)) % 5
    return jnp.tanh(z @ w + (TABLE[0] * w[0] + (TABLE @ w)[index])[None]), None


def own_weights(w, z, x):
    return jnp.tanh(z @ x + z @ w), None


def own_filters(w, z, x):
    image = z[:, :, None] @ w[:1, :1]
    moved = lax.conv_general_dilated(
        image, x, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return jnp.tanh(moved[..., 0] + z @ w), z


def independent(w, z, x):
    return jnp.sin(x @ w), z @ w


def constant_leaf(w, carry, x):
    z, fixed = carry
    return (jnp.tanh(z @ w + fixed[None]), fixed), x * fixed[None]


STEPS = {
    "readout": (readout, Z, XS),
    "keys out": (keys_out, (jax.random.key(0), Z), XS),
    "partly read": (partly_read, (0, (Z, Z + 1), 0.5), XS),
    "loop inside": (loop_inside, Z, XS),
    "looked up": (looked_up, Z, XS),
    "weights of its own": (own_weights, Z, OWN),
    "filters of its own": (own_filters, Z, FILTER),
    "independent": (independent, Z, XS),
    "constant leaf": (constant_leaf, (Z, Z[0]), XS),
    "checkpoint": (lambda w, z, x: jax.checkpoint(readout)(w, z, x), Z, XS),
}


def loss(step, scan, w, start, xs):
    last, ys = scan(partial(step, w), start, xs)
    floating = [x for x in jax.tree.leaves((last, ys)) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum(jnp.sum(jnp.sin(x)) for x in floating)


def floats(tree):
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


@pytest.mark.parametrize("adjoint", ADJOINTS)
@pytest.mark.parametrize("name", STEPS)
def test_derivatives_are_those_of_lax_scan(name, adjoint):
    step, start, xs = STEPS[name]

    def derivatives(scan):
        f = partial(loss, step, scan)
        gradient = jax.grad(f, (0, 2))
        found = jax.value_and_grad(f, (0, 2))(W, start, xs)
        pushed = jax.jvp(lambda w: f(w, start, xs), (W,), (jnp.cos(W),))[1]
        curved = jax.jvp(lambda w: gradient(w, start, xs), (W,), (jnp.cos(W),))[1]
        many = jax.vmap(gradient, (0, None, None))(jnp.stack([W, 0.5 * W]), start, xs)
        return found, pushed, curved, many

    def both():
        return [derivatives(scan) for scan in (ours, lax.scan)]

    ours = partial(deeppcr.scan, adjoint=ADJOINTS[adjoint])
    found, expected = jax.jit(both)()
    assert_agree(found, expected, 1e-9)


@pytest.mark.parametrize("adjoint", ADJOINTS)
@pytest.mark.parametrize("name", ["readout", "partly read"])
def test_of_the_third_order_and_by_matrices(name, adjoint):
    step, start, xs = STEPS[name]

    def derivatives(scan):
        f = lambda w: loss(step, scan, w, start, xs[:5])  # noqa: E731
        size = lambda w: jnp.sum(jax.grad(f)(w) ** 2)  # noqa: E731
        return jax.grad(size)(W), jax.hessian(f)(W), jax.jvp(jax.grad(size), (W,), (W,))[1]

    ours = partial(deeppcr.scan, adjoint=ADJOINTS[adjoint])
    found, expected = jax.jit(lambda: [derivatives(scan) for scan in (ours, lax.scan)])()
    assert_agree(found, expected, 1e-8)


@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_what_is_not_read_makes_no_nan_of_an_infinite_derivative(adjoint):
    def step(carry, x):
        z, root = carry
        return (jnp.sin(z + x), jnp.sqrt(root * z)), (z, jnp.sqrt(root))

    def gradient(scan, of):
        f = lambda z: jnp.sum(of(scan(step, (z, jnp.zeros(2)), XS[:, 0, :2])))  # noqa: E731
        return jax.grad(f)(Z[0, :2])

    for of in (lambda found: found[0][0], lambda found: found[1][0]):
        ours = partial(deeppcr.scan, adjoint=ADJOINTS[adjoint])
        found = gradient(ours, of)
        assert jnp.isfinite(found).all()
        assert_agree(found, gradient(lax.scan, of), 1e-10)


def kalman(scan, p):
    def step(carry, y):
        mean, cov = p["F"] @ carry[0], p["F"] @ carry[1] @ p["F"].T + p["Q"]
        spread = p["H"] @ cov @ p["H"].T + jnp.eye(2)
        gain = jax.scipy.linalg.solve(spread, p["H"] @ cov, assume_a="pos").T
        error = y - p["H"] @ mean
        root = jnp.linalg.cholesky(spread)
        z = jax.scipy.linalg.solve_triangular(root, error, lower=True)
        gained = -0.5 * z @ z - jnp.sum(jnp.log(jnp.diag(root)))
        return (mean + gain @ error, cov - gain @ spread @ gain.T), gained

    start = jnp.zeros(4), jnp.eye(4)
    return jnp.mean(scan(step, start, normal(6, 100, 2))[1])


def many_scalars(scan, p):
    def step(carry, t):
        place, speed = carry
        speed = {i: v + 0.1 * jnp.sin(place[i]) - p["drag"][i] * v for i, v in speed.items()}
        place = {i: x + 0.1 * speed[i] for i, x in place.items()}
        return (place, speed), sum(speed.values()) * t

    zeros = {i: jnp.zeros(()) for i in p["drag"]}
    return jnp.mean(scan(step, (p["place"], zeros), normal(7, 100))[1])


SCALARS = {i: jnp.asarray(0.1 * i) for i in range(12)}
LONG = {
    "kalman": (kalman, {"F": normal(8, 4, 4, scale=0.3), "Q": jnp.eye(4), "H": normal(9, 2, 4)}),
    "scalars": (many_scalars, {"drag": SCALARS, "place": SCALARS}),
}


def _kernels(f, parameters):
    text = jax.jit(jax.grad(f)).lower(parameters).compile().as_text()
    return text.count(" fusion(") + text.count(" dot(") + text.count(" custom-call(")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the rule for CPUs")
@pytest.mark.parametrize("name", LONG)
def test_a_long_step_compiles_to_about_as_many_kernels(name):
    program, parameters = LONG[name]
    ours, theirs = (
        _kernels(partial(program, scan), parameters) for scan in (deeppcr.scan, lax.scan)
    )
    assert ours <= 1.5 * theirs


def test_a_step_is_run_once_for_a_gradient():
    calls = []

    def step(z, x):
        calls.append(1)
        return readout(W, z, x)

    jax.jit(jax.grad(lambda z: deeppcr.scan(step, z, XS)[1].sum())).lower(Z)
    assert len(calls) == 1


@pytest.mark.parametrize("reads", ["last", "outputs"])
def test_examples_of_a_loop_inside_a_step(reads):
    def loss(scan, z):
        def step(z, x):
            row = jax.vmap(lambda s: scan(lambda v, k: (jnp.tanh(v * k + s), v), s, W[0])[0])(z)
            return 0.5 * z + 0.3, jnp.maximum(row, row + x[0, 0])

        last, ys = scan(step, z, XS[:4])
        return jnp.sum(jnp.sin(last if reads == "last" else ys))

    def both(z):
        gradients = (jax.grad(partial(loss, scan)) for scan in (deeppcr.scan, lax.scan))
        return [jax.jvp(gradient, (z,), (jnp.cos(z),)) for gradient in gradients]

    assert_agree(*jax.jit(both)(Z[0]), 1e-10)


def test_a_step_does_not_outlive_its_chain():
    """What is known of a step, which refers to it, keeps it no longer than it is used."""
    step, _ = trace(lambda z, x: (jnp.tanh(z + x), None), jnp.ones(2), jnp.ones(2))
    StepTangents.of(step, Moves([True], [True], []), in_halves=False)
    find_structure(step, StateLayout.of([jnp.ones(2)], 0))
    alive = weakref.ref(step)
    del step
    gc.collect()
    assert alive() is None
