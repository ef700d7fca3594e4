"""Chains solved by "auto" give what `jax.lax.scan` gives, however jax transforms them."""

import importlib
from functools import cache, partial

import jax
import jax.numpy as jnp

import deeppcr
from tests.planning.chains import CHAINS
from tests.problems import assert_agree, normal

auto = importlib.import_module("deeppcr.solving.problem")


def everything(scan, step, z0, xs, without=()):
    """A loss of a chain with outputs and a counter of its own, backwards, transformed; by name."""

    def loss(z0, xs, scan=scan):
        def f(carry, x):
            z, count = carry
            after = step(z, x)
            return (after, count + 1), ((after * z).sum(), count)

        (last, _), (ys, counts) = scan(f, (z0, 0), xs, reverse=True)
        return (last**2).sum() + (ys * jnp.cos(ys) * counts).mean()

    def repeated(z0):
        def body(z, _):
            value, slope = jax.value_and_grad(loss)(z, xs)
            return 0.1 * slope, value

        return jax.lax.scan(body, z0, length=2)

    dz, dx = normal(8, *z0.shape), normal(9, *xs.shape)
    gradient = jax.grad(jax.checkpoint(loss), (0, 1))
    transformed = {
        "jvp": lambda: jax.jvp(loss, (z0, xs), (dz, dx)),
        "grad of grad": lambda: jax.grad(lambda z: (jax.grad(loss)(z, xs) * dz).sum())(z0),
        "vmap of grad of checkpoint": lambda: jax.vmap(gradient, (0, None))(
            jnp.stack([z0, 2 * z0]), xs
        ),
        "scan": lambda: repeated(z0),
    }
    return {name: run() for name, run in transformed.items() if name not in without}


@cache
def by_lax():
    chain, z0 = CHAINS["elementwise"]
    return jax.jit(partial(everything, jax.lax.scan, chain.step))(z0, chain.inputs)


def assert_transformed(*without):
    chain, z0 = CHAINS["elementwise"]
    run = partial(everything, deeppcr.scan, chain.step, without=without)
    expected = {name: result for name, result in by_lax().items() if name not in without}
    assert_agree(jax.jit(run)(z0, chain.inputs), expected, 1e-8)


def test_every_transformation_by_newton(parallel):
    chain, z0 = CHAINS["elementwise"]
    text = str(
        jax.make_jaxpr(
            lambda z: deeppcr.scan(lambda z, x: (chain.step(z, x), None), z, chain.inputs)
        )(z0)
    )
    assert "while[" in text
    assert_transformed("grad of grad")  # which test_adjoint.py has, and which compiles for long


def test_every_transformation_here():
    assert_transformed()


def test_an_adjoint_is_found_for_a_method_of_the_users(parallel):
    method = deeppcr.Newton(linearize="identity", max_iterations=3)
    chain, z0 = CHAINS["elementwise"]

    @jax.jit
    @jax.grad
    def gradient(z):
        return deeppcr.solve(chain, z, method=method).trajectory.sum()

    @jax.jit
    @jax.grad
    def expected(z):
        return jax.lax.scan(lambda z, x: 2 * (chain.step(z, x),), z, chain.inputs)[1].sum()

    assert_agree(gradient(z0), expected(z0), 1e-8)


def test_statistics_survive_differentiation(parallel):
    chain, z0 = CHAINS["elementwise"]

    def loss(z):
        solution = deeppcr.solve(chain, z)
        return solution.value.sum(), (solution.stats, solution.result)

    @jax.jit
    def both(z):
        return loss(z)[1], jax.grad(loss, has_aux=True)(z)[1]

    plain, kept = both(z0)
    assert_agree(kept, plain)
    assert int(plain[0].iterations) > 1
