"""What a solution says: which method ran, how it ended, and what to do."""

import math
import pickle
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton, TrustRegion
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


WHERE = {
    "jit": lambda f: jax.jit(f)(0.3),
    "vmap": lambda f: jax.vmap(f)(jnp.array([0.3])),
    "grad": lambda f: jax.grad(f)(0.3),
    "shapes": lambda f: jax.eval_shape(f, 0.3),
}


@pytest.mark.parametrize("where", WHERE)
def test_it_is_printed_in_a_few_lines_wherever_it_is(where, capsys):
    def value(z):
        print(solution := deeppcr.solve(CHAOS, z, method=Newton(record=True, **SHORT)))
        return solution.value

    WHERE[where](value)
    printed = capsys.readouterr().out.splitlines()
    assert 2 <= len(printed) <= 12
    assert all(len(line) <= 80 and "Tracer" not in line for line in printed)


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


def lorenz(z, _):
    x, y, w = z
    return z + 0.02 * jnp.stack([10 * (y - x), x * (28 - w) - y, x * y - 8 / 3 * w])


def network(z, x):
    return jnp.tanh(normal(0, 3, 3) @ z + x)


def map_of_chaos(z, _):
    return 3.9 * z * (1 - z)


ADVISED = {  # a step, options, the iterations before the advice
    "decays": (network, {}, 3),
    "decays slowly": (network, {"linearize": "zero"}, 16),
    "by diagonals": (network, {"linearize": "diagonal"}, 8),
    "forgets nothing": (lambda z, x: z + 0.03 * jnp.cos(z + x), {"linearize": "identity"}, 16),
    "chaos": (map_of_chaos, {}, 24),
    "Lorenz": (lorenz, {}, 24),
    "Lorenz, damped": (lorenz, {"damping": TrustRegion()}, 8),
}


@pytest.mark.parametrize("name", ADVISED)
def test_twice_the_iterations_that_are_said_are_enough(name):
    step, options, spent = ADVISED[name]
    chain, z0 = Chain(step, normal(1, 300, 3)), jnp.full(3, 0.3)
    tried = solve(chain, z0, method=Newton(**options, record=True, max_iterations=spent))
    said = re.search(
        r"about (\d+) iterations .*; the loop is faster$", " ".join(str(tried).split())
    )
    enough = 2 * int(said[1])
    found = solve(chain, z0, method=Newton(**options, max_iterations=enough, on_failure="return"))
    assert found.converged
    assert enough < 8 * found.stats.iterations


def test_where_the_loop_is_not_faster_a_budget_is_said(monkeypatch):
    assert (
        advice(CHAOS)[0]["advice"]
        == "about 24 iterations in all (1.7 steps each); the loop is faster"
    )
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(math, "log2", lambda _: 0.0)
    said = advice(CHAOS, record=True)[0]["advice"]
    assert said == "about 24 iterations in all (1.7 steps each): max_iterations=41 (or"


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
