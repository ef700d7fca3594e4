"""Trials: candidates are timed, and ranked by that; nothing is kept. And signatures of chains."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import deeppcr
import depth
from deeppcr import _instance as instance
from deeppcr._plan import Candidates, best_gradient, best_method
from deeppcr._plan.choose import choose_method
from tests.plan.chains import CHAINS, costs_of, elementwise, like

CHAIN, Z0 = CHAINS["elementwise"]
NEWTON = "Newton, diagonal, sequential"


def tried(costs, **seconds):
    """The candidates, of which some were tried."""
    return Candidates(costs, depth.at_hand("cpu"), trials=seconds)


@pytest.fixture
def costs(memo):
    return costs_of(CHAIN, Z0)


def test_what_is_tried_is_ranked_and_not_kept(memo, monkeypatch):
    monkeypatch.setattr(instance, "TRIAL", 0.002)
    before = deeppcr.plan(CHAIN, Z0).to_json()
    found = deeppcr.plan(CHAIN, Z0, trials=True)
    measured = {
        each.name: each.measured
        for each in (*found.main.forward, *found.main.gradient)
        if each.measured is not None
    }
    assert 3 < len(measured) <= 6
    assert all(0 < seconds < 10 for seconds in measured.values())
    for candidates in (found.main.forward, found.main.gradient):
        times = [candidate.measured for candidate in candidates if candidate.measured is not None]
        assert candidates[0].measured is not None
        assert len(times) == min(3, len(candidates))
    forward = [each.measured for each in found.main.forward if each.measured is not None]
    assert forward == sorted(forward)
    assert (found.method, found.adjoint) == (
        found.main.forward[0].method,
        found.main.gradient[0].adjoint,
    )
    assert "measured" in next(line for line in str(found).splitlines() if "predicted" in line)
    assert deeppcr.plan(CHAIN, Z0).to_json() == before
    assert choose_method(costs_of(CHAIN, Z0), "cpu") == deeppcr.Sequential()


@pytest.mark.parametrize("arguments", [{"device": "H200"}, {"device": "cpu"}], ids=str)
def test_trials_of_another_device_are_refused(arguments):
    with pytest.raises(ValueError, match="device is") as error:
        deeppcr.plan(CHAIN, Z0, trials=True, **arguments)
    assert repr(arguments["device"]) in str(error.value)


def test_trials_need_arrays():
    with pytest.raises(ValueError, match=r"z0 has shapes .* trials=True"):
        deeppcr.plan(*like(), trials=True)


# -- ranked ---------------------------------------------------------------------------------------


def test_the_fastest_tried_is_the_best(costs):
    assert best_method(Candidates(costs, depth.at_hand("cpu")))[0].is_sequential
    seconds = {
        "sequential": 2.0,
        NEWTON: 1.0,
        f"{NEWTON} / backprop": 0.5,
        "sequential / autodiff": 3.0,
    }
    candidates = tried(costs, **seconds)
    method = best_method(candidates, everything=True)[0].method
    assert isinstance(method, deeppcr.Newton)
    assert method.linear == deeppcr.Recurrence()
    best = best_gradient(candidates, None, everything=True)[0]
    assert best.name == f"{NEWTON} / backprop"
    faster = dataclasses.replace(candidates, trials=seconds | {"sequential": 0.1})
    assert best_method(faster, everything=True)[0].is_sequential


def test_the_fastest_tried_is_the_best_however_small_the_gain(costs):
    candidates = tried(costs, **{"sequential": 1.0, NEWTON: 0.9})
    assert best_method(candidates, everything=True)[0].name == NEWTON


def test_the_fastest_tried_is_the_best_however_slow_it_was_predicted(memo):
    candidates = tried(costs_of(*like()), **{"sequential": 2.0, NEWTON: 1.0})
    assert best_method(candidates, everything=True)[0].name == NEWTON


def test_speedups_compare_like_with_like(costs, monkeypatch):
    plain = deeppcr.plan(CHAIN, Z0).main.to_json()
    seconds = {"sequential": 100.0, "sequential / autodiff": 300.0}
    monkeypatch.setattr(instance.Instance, "seconds", lambda *_: seconds)
    found = deeppcr.plan(CHAIN, Z0, trials=True).main.to_json()
    for kind in ("forward", "gradient"):
        known = {each["name"]: each["speedup"] for each in plain[kind]}
        assert {each["name"]: each["speedup"] for each in found[kind]} == pytest.approx(known)
        assert found[kind][0]["measured_seconds"] in (100.0, 300.0)


# -- the signature --------------------------------------------------------------------------------


def test_the_signature_is_the_same_for_a_new_trace():
    def own_rule():
        @jax.custom_jvp
        def f(z):
            return jnp.sin(z)

        f.defjvps(lambda t, _, z: 2 * t * jnp.cos(z))
        return deeppcr.Chain(lambda z, x: f(z) + x, jnp.ones((4, 3))), jnp.ones(3)

    for make in (own_rule, like, *(lambda name=name: CHAINS[name] for name in CHAINS)):
        assert costs_of(*make()).signature == costs_of(*make()).signature


def test_the_signature_differs_for_other_chains():
    def twice(z, x):
        return jnp.tanh(2 * z + x)

    found = [
        costs_of(*like()),
        costs_of(*like(step=twice)),
        costs_of(*like(width=8)),
        costs_of(*like(length=8)),
        costs_of(*like(dtype="float64")),
        costs_of(deeppcr.Chain(elementwise, jnp.ones((8, 2, 4))), jnp.ones((2, 4)), 1),
        costs_of(deeppcr.Chain(elementwise, jnp.ones((8, 2, 4))), jnp.ones((2, 4)), 0),
        costs_of(*like(length=2048)),
        costs_of(*like()).shared_by(2),  # which has 2048 steps, too
    ]
    assert len({costs.signature for costs in found}) == len(found)
    assert costs_of(*like()).signature == found[0].signature
