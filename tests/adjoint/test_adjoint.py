"""Derivatives under every transformation of jax, against those of `jax.lax.scan`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.lower.variants import CPU
from tests.problems import assert_agree, normal, on_a_cpu

COMBINATIONS = {
    "step by step": partial(deeppcr.scan, method="sequential", adjoint="backprop"),
    "newton, pcr": partial(deeppcr.scan, method="newton", adjoint="pcr"),
    "pcr": partial(deeppcr.scan, method="sequential", adjoint="pcr"),
}
L = 5  # odd: no solver can halve it evenly
ARGUMENTS = normal(0, 3, 3, scale=0.5), normal(1, 3), normal(2, L, 3)


def step(weight, z, x):
    new = jnp.tanh(weight @ z + x)
    return new, new * z


def run(scan, weight, init, xs):
    """The last carry and all ys of a small chain that closes over ``weight``."""
    return scan(partial(step, weight), init, xs)


def loss(scan, weight, init, xs):
    last, ys = run(scan, weight, init, xs)
    return jnp.sum(last**3) + jnp.sum(jnp.sin(ys))


def gradient(scan, *arguments):
    return jax.value_and_grad(partial(loss, scan), argnums=(0, 1, 2))(*arguments)


def test_grad_of_integer_xs_is_float0_as_in_lax_scan():
    def value(scan, init, number):
        return scan(lambda z, n: (jnp.sin(z) * n.astype(z.dtype), z), init, number)[0]

    arguments = jnp.array(0.3), jnp.arange(1, 5)
    grads = [
        jax.grad(partial(value, scan), argnums=(0, 1), allow_int=True)(*arguments)
        for scan in (partial(deeppcr.scan, adjoint="backprop"), jax.lax.scan)
    ]
    assert_agree(grads[0][0], grads[1][0])
    assert grads[0][1].dtype == grads[1][1].dtype == jax.dtypes.float0


def test_numbers_as_tangents():
    """Under jit they come as they are: Python's, numpy's, or weakly typed."""
    arguments = jnp.array(0.3), jnp.array(0.8), normal(0, L)
    layers = [lambda z: jnp.tanh(0.5 * z)] * 4

    def by_scan(scan, init, weight, xs):
        return scan(lambda z, x: (jnp.tanh(weight * z) + x, z * x), init, xs)

    def by_loop(z):
        for layer in layers:
            z = layer(z)
        return z

    def pushed(scan, forward, init, weight, xs):
        program = partial(by_scan, scan)
        by_all = jax.jvp(program, (init, weight, xs), (1.0, np.float64(2.0), np.ones(L)))
        by_weight = jax.jvp(lambda w: program(init, w, xs), (weight,), (jnp.asarray(3.0),))
        return by_all, by_weight, jax.jvp(forward, (init,), (1.0,))

    forward = partial(deeppcr.forward, layers, adjoint="pcr")

    @jax.jit
    def both(*arguments):
        ours = pushed(COMBINATIONS["pcr"], forward, *arguments)
        return ours, pushed(jax.lax.scan, by_loop, *arguments)

    assert_agree(*both(*arguments))


@pytest.mark.parametrize("adjoint", ["sequential", "backprop"])
def test_a_sequential_adjoint_in_several_chunks(monkeypatch, adjoint):
    """The last one is shorter."""
    monkeypatch.setattr("deeppcr.lower.variants.CPU", CPU._replace(cache=3 * 8 * 9))
    scan = partial(deeppcr.scan, adjoint=adjoint)

    def both(scan, *arguments):
        out, pull = jax.vjp(partial(run, scan), *arguments)
        pushed = jax.jvp(partial(run, scan), arguments, arguments)
        return pushed, pull(jax.tree.map(jnp.ones_like, out))

    assert_agree(*jax.jit(lambda *a: (both(scan, *a), both(jax.lax.scan, *a)))(*ARGUMENTS))


def test_one_example_that_is_nan_does_not_harm_the_others():
    weight, xs = ARGUMENTS[0], ARGUMENTS[2]
    init = np.stack([normal(0, 3), np.full(3, np.nan), normal(1, 3)])

    def value(scan, init):
        def body(z, x):
            new = jnp.tanh(z @ weight + jnp.broadcast_to(x, z.shape))
            return new, new * z

        return jnp.sum(scan(body, init, xs)[1][:, ::2] ** 2)

    ours = (partial(deeppcr.scan, adjoint=each, batch_ndim=1) for each in ("sequential", "pcr"))
    scans = jax.lax.scan, *ours
    found = jax.jit(lambda z: [jax.grad(partial(value, scan))(z) for scan in scans])(init)
    wanted, *actual = (np.asarray(gradient)[::2] for gradient in found)
    assert np.isfinite(wanted).all()
    assert_agree(actual, [wanted, wanted])


@pytest.mark.usefixtures("_nothing_older")
def test_no_tracer_leaks():
    with jax.checking_leaks():
        jax.jit(partial(gradient, COMBINATIONS["newton, pcr"]))(*ARGUMENTS)


def test_auto_is_sequential_on_a_cpu_and_keeps_its_blocks_in_the_cache():
    def program(adjoint):
        def loss(w):
            xs = jnp.zeros(8 * (CPU.cache // (8 * 9)))
            out = deeppcr.scan(lambda z, x: (jnp.tanh(w @ z + x), None), w[0], xs, adjoint=adjoint)
            return out[0].sum()

        with on_a_cpu():
            return str(jax.make_jaxpr(jax.grad(loss))(np.eye(3)))

    found = program(deeppcr.Adjoint())
    assert found == program(deeppcr.Adjoint(linear="sequential"))
    assert f"f64[{CPU.cache // (8 * 9)},3,3]" in found
