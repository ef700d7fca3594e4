"""What is chosen is kept for programs of the same signature, and nothing else is kept with it."""

import gc
import importlib
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import pytest

import deeppcr
import depth
from tests.plan.chains import CHAINS, costs_of, like
from tests.problems import assert_agree, normal

choose = importlib.import_module("deeppcr._plan.choose")
H200 = depth.devices["H200"]


@pytest.fixture
def asked(monkeypatch, memo):
    """For which lengths, dtypes and devices candidates were scored: an entry each time."""
    asked = []

    def count(function):
        def counted(candidates, *rest, **options):
            asked.append(
                (
                    candidates.costs.chain.length,
                    str(candidates.costs.chain.layout.dtype),
                    candidates.device.name,
                )
            )
            return function(candidates, *rest, **options)

        return counted

    for name in ("best_method", "best_gradient"):
        monkeypatch.setattr(choose, name, count(getattr(choose, name)))
    return asked


def trace(width=3, length=5, dtype="float32", grows=1.0, what=deeppcr.scan):
    """A program made of a new function of the same code, every time."""

    def f(xs, z):
        return what(lambda z, x: (jnp.sin(z * jnp.asarray(grows, z.dtype) + x), None), z, xs)[
            0
        ].sum()

    return jax.make_jaxpr(f)(jnp.zeros((length, width), dtype), jnp.zeros(width, dtype))


def test_the_same_gradient_is_scored_once(asked, parallel):
    def gradient():
        jax.make_jaxpr(
            jax.grad(
                lambda z: deeppcr.scan(lambda z, x: (jnp.sin(z + x), None), z, jnp.ones((5, 3)))[
                    0
                ].sum()
            )
        )(jnp.ones(3))

    gradient()
    first = len(asked)
    assert first
    gradient()
    assert len(asked) == first


def test_another_program_is_scored_anew(asked):
    others = {}, {"length": 6}, {"dtype": "float64"}, {"width": 4}, {"grows": 0.5}
    for _ in range(2):
        for changes in others:
            trace(**changes)
        assert len(asked) == len(others)


def test_another_device_is_asked_anew(asked, monkeypatch):
    for name in ("H200", "A100", "H200", "A100"):
        monkeypatch.setattr(depth, "at_hand", lambda platform=None, name=name: depth.devices[name])
        trace()
    assert [device for *_, device in asked] == ["H200", "A100"]


def test_a_call_finds_what_its_plan_computed(memo):
    chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((8, 3)))
    z0 = jnp.zeros(3)
    deeppcr.plan(chain, z0)
    known = set(memo)
    jax.make_jaxpr(jax.grad(lambda z: jnp.sum(deeppcr.solve(chain, z).value)))(z0)
    assert {key[0][0] for key in known} == {"method", "adjoint"}
    assert set(memo) == known


def test_a_device_that_takes_the_place_of_another_in_memory_is_not_taken_for_it(asked, monkeypatch):
    costs, here = costs_of(*like(8, 1024)), []
    monkeypatch.setattr(depth, "at_hand", lambda platform=None: here[0])  # which keeps no other
    for latency in (0.0, 1e-3) * 3:
        here.clear()
        here.append(H200.replace(kernel_latency=latency, loop_latency=latency))
        assert isinstance(
            choose.choose_method(costs, "cuda"), deeppcr.Newton if latency else deeppcr.Sequential
        )


def test_what_was_asked_for_last_is_kept_longest(asked, memo, monkeypatch):
    monkeypatch.setattr(choose, "KEPT", 2)
    for length in (2, 3, 2, 4, 2, 3):
        trace(length=length)
    assert [length for length, *_ in asked] == [2, 3, 4, 3]
    assert [key[0][0] for key in memo] == ["method"] * 2


# -- nothing else is kept -------------------------------------------------------------------------


def trace_gradient(name):
    """A value and a gradient by a step that closes over a traced array."""
    chain, z0 = CHAINS[name]

    def loss(scale, z0):
        def step(z, x):
            return chain.step(z * scale, x), None

        return deeppcr.scan(step, z0, chain.inputs)[0].sum()

    return jax.make_jaxpr(jax.jit(jax.value_and_grad(loss, (0, 1))))(jnp.array(0.5), z0)


@pytest.mark.usefixtures("_nothing_older")  # jax looks through all objects that are not frozen
def test_no_tracer_leaks(parallel):
    with jax.checking_leaks():
        trace_gradient("elementwise")


def test_a_linearisation_that_holds_arrays_is_not_kept(parallel, memo):
    z0, xs, known = normal(0, 4), normal(1, 16, 4), jnp.array(0.5)

    def loss(z0, coefficient):
        method = deeppcr.Newton(linearize=deeppcr.Scalar(coefficient))
        return deeppcr.scan(lambda z, x: (jnp.tanh(0.5 * z + x), None), z0, xs, method=method)[
            0
        ].sum()

    def expected(z0):
        return jax.lax.scan(lambda z, x: (jnp.tanh(0.5 * z + x), None), z0, xs)[0].sum()

    found, right = jax.jit(lambda z, c: (jax.grad(loss)(z, c), jax.grad(expected)(z)))(z0, known)
    assert_agree(found, right)
    jax.make_jaxpr(jax.grad(lambda z: loss(z, known)))(z0)
    assert "Tracer" not in repr(memo)


OUTLIVED = """
import gc, importlib, weakref
import jax, jax.numpy as jnp
import deeppcr, depth

choices = importlib.import_module("deeppcr._plan.choose")._CHOICES

class Owner:
    pass

def call():
    own = Owner()

    def step(z, x):
        own.used = True
        return jnp.sin(z + x), None

    def loss(z, xs):
        return deeppcr.scan(step, z, xs)[0].sum()

    jax.make_jaxpr(loss)(jnp.ones(3), jnp.ones((16, 3)))
    jax.make_jaxpr(jax.grad(loss))(jnp.ones(3), jnp.ones((16, 3)))
    assert own.used
    return weakref.ref(step), weakref.ref(own)

here, alive = depth.at_hand(), []
for kept, device in (2, depth.devices["H200"].replace(name="slow", loop_latency=1e-3)), (4, here):
    depth.at_hand = lambda platform=None, device=device: device
    alive += call()
    assert len(choices) == kept
jax.clear_caches()  # jax's own, which hold on to what has been traced
gc.collect()
assert [reference() for reference in alive] == [None] * 4
"""


def test_the_step_does_not_outlive_the_call():
    """In a process of its own: others would have to trace all again."""
    subprocess.run([sys.executable, "-c", OUTLIVED], check=True)


@pytest.mark.usefixtures("_nothing_older")
def test_what_is_kept_holds_no_chain(parallel, memo):
    chain, z0 = CHAINS["gru"]
    costs = costs_of(chain, z0)
    choose.choose_method(costs, "cpu")
    choose.choose_adjoint(costs, None, "cpu")
    alive = weakref.ref(costs)
    del costs
    gc.collect()
    assert len(memo) == 2
    assert alive() is None
