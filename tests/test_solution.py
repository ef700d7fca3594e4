"""What a solution says: which method ran, how it ended, and what to do."""

import math
import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton
from tests.problems import normal, solve

L = 40
WEIGHT = normal(0, 2, 2)
CHAIN = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), normal(1, L, 2))
Z0 = jnp.zeros(2)
CHAOS = Chain(lambda z, x: 3.9 * z * (1 - z), length=L)
SHORT = {"max_iterations": 3, "linear": "sequential"}


BY_FLAG = Chain(lambda z, x: (z[0] * 0.5, z[0] > 0), length=3)


@pytest.mark.parametrize(
    ("chain", "z0", "method", "name"),
    [
        (CHAIN, Z0, "auto", "sequential"),
        (CHAIN, Z0, Newton(linearize="zero"), "newton"),
        (BY_FLAG, (jnp.array(0.5), jnp.array(True)), "auto", "jax.lax.scan"),
    ],
)
def test_the_method_is_named(chain, z0, method, name):
    assert str(deeppcr.solve(chain, z0, method=method)).splitlines()[0] == name


@cache
def either():
    """One of two methods, while the program runs."""

    def solve(z, takes_newton):
        ways = [
            lambda: deeppcr.solve(CHAOS, z, method="sequential"),
            lambda: deeppcr.solve(CHAOS, z, method=Newton(**SHORT)),
        ]
        return jax.lax.cond(takes_newton, *ways[::-1])

    return jax.jit(solve)


@pytest.mark.parametrize("takes_newton", [False, True])
def test_it_stays_true_under_cond(takes_newton):
    solution = either()(jnp.array(0.3), takes_newton)
    assert bool(solution.method) == takes_newton
    assert str(pickle.loads(pickle.dumps(solution))) == str(solution)


def test_each_of_a_batch_has_its_own():
    many = jax.vmap(lambda z: deeppcr.solve(CHAIN, z, method="newton"))
    found = jax.jit(many)(normal(2, 3, 2))
    assert found.method.shape == (3,)
    assert str(found).splitlines()[0] == "3 chains: 3 converged"
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[0], found)
    assert str(one).splitlines()[0].startswith("newton")


def advice(chain, **options):
    """The rows of a solution that has not converged, by their names."""
    solution = solve(chain, jnp.array(0.3), method=Newton(**(SHORT | options)))
    rows = [line.split("  ", 1) for line in str(solution).splitlines() if "  " in line]
    return {name: rest.strip() for name, rest in rows}, solution


def test_it_is_said_how_many_iterations_a_chain_would_take(monkeypatch):
    rows, solution = advice(CHAOS, record=True)
    rate = rows["growth rate"].removesuffix(" a step")
    assert float(rate) == pytest.approx(float(solution.stats.growth_rate), rel=1e-2)
    steps = int(solution.stats.prefix) / int(solution.stats.iterations)
    said = f"max_iterations={math.ceil(L / steps)} would do, {steps:.2g} steps each"
    assert rows["advice"] == f"{said}; the loop is faster"
    assert advice(CHAOS)[0]["advice"] == rows["advice"]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(math, "log2", lambda _: 0.0)
    assert advice(CHAOS, record=True)[0]["advice"] == f"{said} (or try TrustRegion())"


def test_there_is_no_growth_rate_of_states_that_are_not_right():
    rows, solution = advice(CHAOS, record=True, on_failure="return")
    assert rows["growth rate"] == "none: the result is not converged"
    assert jnp.isnan(solution.stats.growth_rate)
    xs = np.ones(L)
    xs[4] = np.nan
    bad = Chain(lambda z, x: 0.5 * z + x, xs)
    rows, _ = advice(bad, record=True)
    assert rows["growth rate"] == "none: the result is not finite"
    assert rows["advice"].startswith("step 5 is the first whose state is not finite")
