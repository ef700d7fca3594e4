"""One program has one depth and one time, in a plan and by `depth.compare`: nothing is compiled."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
import depth
from deeppcr import Newton

DEVICES = {"GPU": depth.devices["H100"], "CPU": depth.models.generic_cpu(2)}


def f(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def pendulum(w, z, x):
    angle, speed = z
    speed = 0.99 * speed - w * jnp.sin(angle) + x
    return angle + 0.1 * speed, speed


def tanh(w, z, x):
    return jnp.tanh(w @ z + x)


# Step, parameters, state, inputs; and the method, "auto" for the one that the plan takes.
CHAINS = {
    "scalar": (lambda w, z, x: jnp.tanh(w * z + x), f(), f(), f(2000), "auto"),
    "narrow": (tanh, f(4, 4), f(4), f(1024, 4), "auto"),
    "diagonal of wide": (tanh, f(32, 32), f(32), f(512, 32), Newton(linearize="diagonal")),
    "pendulum": (pendulum, f(), (f(), f()), f(777), "auto"),
    "linear": (lambda w, z, x: w @ z + x, f(6, 6), f(6), f(300, 6), Newton(linear="chunked")),
    "windows": (tanh, f(4, 4), f(4), f(1000, 4), Newton(window=250, linear="pcr")),
}
CASES = [(name, "CPU" if name == "narrow" else "GPU") for name in CHAINS]


@functools.cache
def planned(name, device):
    """The plan, and the chain's program by a scan: of parameters, state and inputs."""
    step, *arguments, method = CHAINS[name]
    w, z, xs = arguments
    plan = None

    def trace(w, z, xs):
        nonlocal plan
        chain = deeppcr.Chain(lambda z, x: step(w, z, x), xs)
        plan = deeppcr.plan(chain, z, method=method, device=DEVICES[device])

    jax.eval_shape(trace, w, z, xs)

    def program(scan, **options):
        def run(w, z, xs):
            def body(z, x):
                z = step(w, z, x)
                return z, z

            return scan(body, z, xs, **options)[1]

        return run

    return plan.main, program, arguments


def unlimited(method):
    """The method without the budget, at which another program takes over."""
    is_newton = isinstance(method, Newton)
    return dataclasses.replace(method, max_iterations=None) if is_newton else method


@pytest.mark.parametrize(("name", "device"), CASES)
def test_the_speedup_of_a_plan_is_that_of_compare(name, device):
    plan, program, arguments = planned(name, device)
    plain = next(each for each in plan.forward if each.is_sequential)
    newton = next(each for each in plan.forward if isinstance(each.method, Newton))
    # On a CPU, small products in a loop are written out, which jax.lax.scan does not do.
    baseline = program(lax.scan)
    if device == "CPU":
        baseline = program(deeppcr.scan, method="sequential")
    parallel = program(deeppcr.scan, method=unlimited(newton.method))
    found = depth.compare(baseline, parallel, *arguments, device=DEVICES[device])
    assert found.predicted_speedup == pytest.approx(plain.seconds / newton.seconds, rel=0.1)
    assert found.parallel_seconds == pytest.approx(newton.seconds, rel=0.1)
    assert found.parallel.depth == pytest.approx(newton.cost.depth, rel=0.02)
    assert found.depth_speedup == pytest.approx(plain.cost.depth / newton.cost.depth, rel=0.02)
    trips = {each.name: each.trips for each in found.parallel.expected}
    expected = {"newton iteration": newton.iterations, "sequential fallback": 0}
    if newton.method.damping == "auto" and newton.method.window is None:
        expected |= {"newton damping": 0}  # which has the loop of decisions inside it
    assert trips == expected


@pytest.mark.parametrize("name", ["pendulum", "diagonal of wide"])
def test_the_gradient_too(name):
    plan, program, arguments = planned(name, "GPU")
    plain = next(each for each in plan.gradient if each.is_sequential)
    newton = next(each for each in plan.gradient if isinstance(each.method, Newton))

    def gradient(run):
        def both(w, z, xs):
            states, pull = jax.vjp(run, w, z, xs)
            return states, pull(states)

        return both

    parallel = program(deeppcr.scan, method=unlimited(newton.method), adjoint=newton.adjoint)
    programs = gradient(program(lax.scan)), gradient(parallel)
    found = depth.compare(*programs, *arguments, device=DEVICES["GPU"])
    assert found.predicted_speedup == pytest.approx(plain.seconds / newton.seconds, rel=0.1)
    assert found.depth_speedup == pytest.approx(plain.cost.depth / newton.cost.depth, rel=0.1)
