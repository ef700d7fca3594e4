"""Chains solved by "auto" give what `jax.lax.scan` gives, however jax transforms them."""

import dataclasses
import importlib
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.plan.chains import CHAINS, elementwise
from tests.problems import PROBLEMS, assert_agree, backpropagate, normal, oracle

auto = importlib.import_module("deeppcr.problem")


def everything(scan, step, z0, xs):
    """A loss of a chain with outputs of its own, transformed; by name."""

    def loss(z0, xs, scan=scan):
        def f(z, x):
            after = step(z, x)
            return after, (after * z).sum()

        last, ys = scan(f, z0, xs)
        return (last**2).sum() + (ys * jnp.cos(ys)).mean()

    def repeated(z0):
        return jax.lax.scan(lambda z, _: (0.1 * jax.grad(loss)(z, xs), loss(z, xs)), z0, length=2)

    dz, dx = normal(8, *z0.shape), normal(9, *xs.shape)
    gradient = jax.grad(loss, (0, 1))
    return {
        "jvp": jax.jvp(loss, (z0, xs), (dz, dx)),
        "grad of grad": jax.grad(lambda z: (jax.grad(loss)(z, xs) * dz).sum())(z0),
        "vmap of grad": jax.vmap(gradient, (0, None))(jnp.stack([z0, 2 * z0]), xs),
        "checkpoint": jax.grad(jax.checkpoint(loss))(z0, xs),
        "scan": repeated(z0),
    }


def assert_transformed(step, z0, xs):
    actual, expected = (
        jax.jit(partial(everything, scan, step))(z0, xs) for scan in (deeppcr.scan, jax.lax.scan)
    )
    assert_agree(actual, expected, 1e-8)


def test_every_transformation_by_newton(parallel):
    chain, z0 = CHAINS["elementwise"]
    text = str(
        jax.make_jaxpr(
            lambda z: deeppcr.scan(lambda z, x: (chain.step(z, x), None), z, chain.inputs)
        )(z0)
    )
    assert "while[" in text
    assert_transformed(chain.step, z0, chain.inputs)


def test_every_transformation_here(memo):
    chain, z0 = CHAINS["elementwise"]
    assert_transformed(chain.step, z0, chain.inputs)


def test_backwards_integers_and_outputs_of_every_sort(parallel):
    problem = dataclasses.replace(PROBLEMS["odd"], reverse=True)

    def scan(f, init, xs, length, reverse):
        return deeppcr.scan(f, init, xs, length, reverse=reverse, batch_ndim=problem.batch_ndim)

    assert_agree(backpropagate(problem, scan), oracle(problem))


def test_a_gradient_is_planned_only_if_one_is_wanted(monkeypatch, parallel):
    class Asked(Exception):
        pass

    def fail(*_):
        raise Asked

    monkeypatch.setattr(auto, "choose_adjoint", fail)
    chain, z0 = CHAINS["elementwise"]

    def loss(z, adjoint="auto"):
        return deeppcr.solve(chain, z, adjoint=adjoint).value.sum()

    jax.make_jaxpr(loss)(z0)
    jax.make_jaxpr(jax.vmap(loss))(jnp.stack([z0, z0]))
    jax.make_jaxpr(lambda z: deeppcr.scan(lambda z, x: (elementwise(z, x), z), z, chain.inputs))(z0)
    jax.make_jaxpr(jax.grad(lambda z: loss(z, "pcr")))(z0)  # there is nothing to choose
    for transformed in (jax.grad(loss), lambda z: jax.jvp(loss, (z,), (z,))):
        with pytest.raises(Asked):
            jax.make_jaxpr(transformed)(z0)


def test_a_method_is_chosen_only_if_none_is_given(monkeypatch, parallel):
    monkeypatch.setattr(auto, "choose_method", lambda *_: pytest.fail("nothing to choose"))
    chain, z0 = CHAINS["elementwise"]
    for method in ("sequential", "newton", "pcr", deeppcr.Newton(linear="chunked")):
        jax.make_jaxpr(
            jax.grad(lambda z, method=method: deeppcr.solve(chain, z, method=method).value.sum())
        )(z0)


def test_an_adjoint_is_found_for_a_method_of_the_users(parallel):
    method = deeppcr.Newton(linearize="diagonal", max_iterations=3)
    chain, z0 = CHAINS["gru"]

    def gradient(method, adjoint):
        return jax.jit(
            jax.grad(
                lambda z: deeppcr.solve(chain, z, method=method, adjoint=adjoint).trajectory.sum()
            )
        )(z0)

    assert_agree(gradient(method, "auto"), gradient("sequential", "autodiff"), 1e-8)


def test_statistics_survive_differentiation(parallel):
    chain, z0 = CHAINS["elementwise"]

    def loss(z):
        solution = deeppcr.solve(chain, z)
        return solution.value.sum(), (solution.stats, solution.result)

    plain = jax.jit(lambda z: loss(z)[1])(z0)
    _, kept = jax.jit(jax.grad(loss, has_aux=True))(z0)
    assert_agree(kept, plain)
    assert int(plain[0].iterations) > 1
