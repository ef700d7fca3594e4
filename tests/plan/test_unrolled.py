"""A sequential loop is unrolled where XLA then still makes the same of each step."""

import jax
import jax.numpy as jnp
import pytest

import deeppcr
import depth
from deeppcr import Auto, Sequential
from deeppcr._plan.candidates import UNROLL, Candidates
from deeppcr._plan.choose import best_method
from deeppcr._plan.costs import ChainCosts
from deeppcr.adjoint import Autodiff
from deeppcr.adjoint.resolve import resolve_adjoint
from deeppcr.chain import trace_chain
from depth.jaxprs import equations, without_constants
from depth.models import generic_cpu

CPU = generic_cpu(2)


def costs(step, width, length=4000, batch=1):
    def f(z, x):
        z = step(z, x)
        return z, z

    z, xs = (jnp.zeros((*axes, batch, width), "float32") for axes in ((), (length,)))
    return ChainCosts.of(trace_chain(f, z, xs, length, 1, "init"))


def product(width):
    weights = jnp.ones((width, width), "float32") / width
    return lambda z, x: jnp.tanh(z @ weights + x)


@pytest.mark.parametrize(
    ("chain", "unrolls"),
    [
        (costs(lambda z, x: jnp.tanh(z * 0.5 + x), 1), True),  # one function of few bytes
        (costs(lambda z, x: jnp.tanh(z * 0.5 + x), 1000), False),  # its steps would be fused
        (costs(product(1024), 1024), True),  # a call for the product ends each step
        (costs(product(64), 64), False),  # is told to be one function
        (costs(product(8), 8, batch=8), False),  # a sum is fused with the next step
        (costs(lambda z, x: jnp.tanh(z * 0.5 + x), 1, length=UNROLL), False),
    ],
    ids=["few bytes", "many bytes", "vector product", "told", "written out", "short"],
)
def test_where_steps_stay_as_they_are(chain, unrolls):
    names = [one.name for one in Candidates(chain, CPU).unrolled()]
    assert names == [f"sequential, unroll {UNROLL}"] * unrolls


def test_it_is_chosen_where_it_is_predicted_to_be_faster():
    chain = costs(lambda z, x: jnp.tanh(z * 0.5 + x), 1)
    best, *others = best_method(Candidates(chain, CPU))
    assert best.method == Sequential(unroll=UNROLL)
    assert best.time < others[0].time
    assert all(isinstance(one.method, deeppcr.Newton) for one in others[1:])


@pytest.mark.parametrize(
    ("device", "names"), [("H100", ["sequential, unroll 16"]), ("TPU v5e", [])]
)
def test_accelerators_unroll_where_a_trip_is_one_graph(device, names):
    chain = costs(lambda z, x: jnp.tanh(z * 0.5 + x), 1)
    assert [one.name for one in Candidates(chain, depth.devices[device]).unrolled()] == names


def test_a_large_step_is_not_compiled_several_times():
    def long(z, x):
        for k in range(70):
            z = z * 0.5 + k
        return z + x

    assert not list(Candidates(costs(long, 1), CPU).unrolled())


def test_the_user_decides_if_asked():
    assert Auto().with_options(Sequential(unroll=4)) == Sequential(unroll=4)
    assert Auto(unroll=2).with_options(Sequential(unroll=4)) == Sequential(unroll=2)


@pytest.mark.parametrize("unroll", [1, 3])
def test_derivatives_are_unrolled_as_the_loop(unroll):
    z, xs = jnp.ones(2), jnp.linspace(0.5, 1.5, 14).reshape(7, 2)
    method = Sequential(unroll=unroll)
    chain = trace_chain(step, z, xs, 7, 0, "init")
    assert resolve_adjoint(Autodiff(), method, chain).unroll == unroll

    def ours(z, x):
        states = deeppcr.scan(step, z, x, method=method, adjoint=Autodiff(with_states=True))[1]
        return jnp.sum(states**2)

    def plain(z, x):
        return jnp.sum(jax.lax.scan(step, z, x, unroll=unroll)[1] ** 2)

    found, expected = (jax.jit(jax.grad(f, (0, 1)))(z, xs) for f in (ours, plain))
    for a, b in zip(found, expected, strict=True):
        assert jnp.allclose(a, b, rtol=1e-12)
    program = without_constants(jax.make_jaxpr(jax.grad(ours))(z, xs))
    trips = {e.params["unroll"] for e in equations(program) if e.primitive.name == "scan"}
    assert trips == {unroll}


def test_the_derivative_is_that_of_the_loop_as_it_is_where_that_is_faster():
    def lstm(z, x):
        h, c = z[:, :4], z[:, 4:]
        i, f, g, o = jnp.split(h @ weights + x, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c], axis=1), h

    weights = jnp.ones((4, 16), "float32")
    taken = {}
    for batch in (1, 8):
        z, xs = jnp.zeros((batch, 8), "float32"), jnp.zeros((64, batch, 16), "float32")
        chain = ChainCosts.of(trace_chain(lstm, z, xs, 64, 1, "init"))
        taken[batch] = Candidates(chain, CPU).autodiff().rewritten
    assert taken == {1: False, 8: True}


def step(z, x):
    z = jnp.sin(z * x)
    return z, z
