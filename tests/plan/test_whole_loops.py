"""Loops that a CPU runs as one function: jax's own gradient of them is chosen."""

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr._plan.candidate import is_whole
from deeppcr.adjoint import Autodiff
from depth import devices
from depth.jaxprs import equations
from depth.models import generic_cpu
from tests.plan.chains import like
from tests.problems import assert_agree, normal


def plan_of(width, device):
    chain, z0 = like(width, step=lambda z, x: jnp.maximum(0.5 * z + x, 0))
    return deeppcr.plan(chain, z0, device=device)


def test_the_gradient_of_a_narrow_loop_is_jaxs():
    plan = plan_of(1, generic_cpu(2))
    assert plan.adjoint == "autodiff"
    assert "each of its loops is one function" in str(plan)


def test_that_of_a_wider_loop_is_not():
    plan = plan_of(64, generic_cpu(2))
    assert plan.adjoint != "autodiff"
    assert "one function" not in str(plan)


@pytest.mark.parametrize(("limit", "is_rewritten"), [(1200, False), (2000, True)])
def test_a_loop_that_is_one_function_stays_as_it_is_near_the_limit(limit, is_rewritten):
    w = jnp.ones((300, 3, 3), jnp.float32)

    def step(z, x):
        return jnp.tanh(z @ x["a"]) * (z @ x["b"]) + z @ x["c"]

    chain, z0 = deeppcr.Chain(step, dict.fromkeys("abc", w)), jnp.ones((1, 3), jnp.float32)
    device = generic_cpu(2).replace(small_loop=float(limit))
    best = deeppcr.plan(chain, z0, batch_ndim=1, device=device).main.autodiff
    assert is_whole(best, device)
    assert best.rewritten == is_rewritten


def test_the_gradient_of_a_loop_of_one_number_is_unrolled():
    chain, z0 = like(1, step=lambda z, x: jnp.maximum(0.5 * z + x, 0))
    plan = deeppcr.plan(chain, z0, device=generic_cpu(2))
    assert plan.main.autodiff.unroll == 4
    assert "autodiff, unroll 4" in str(plan)


def test_an_unrolled_gradient_is_that_of_the_loop():
    xs = normal(0, 13, 1)

    def gradient(scan, **options):
        def loss(z, xs):
            return (scan(lambda z, x: (jnp.tanh(z + x), z), z, xs, **options)[1] ** 2).sum()

        return jax.grad(loss, (0, 1))

    unrolled = gradient(deeppcr.scan, adjoint=Autodiff(with_states=True, unroll=4))
    program = jax.make_jaxpr(unrolled)(xs[0], xs)
    trips = [e.params["unroll"] for e in equations(program) if e.primitive.name == "scan"]
    assert trips == [4, 4]
    assert_agree(unrolled(xs[0], xs), gradient(jax.lax.scan)(xs[0], xs))


@pytest.mark.parametrize("device", ["H100", "TPU v5e"])
def test_other_devices_have_no_such_loops(device):
    assert not is_whole(plan_of(1, device).main.autodiff, devices[device])
