"""`jax.debug_nans` finds nothing in a healthy chain, whichever way it is solved."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Anderson, Chain, Coarse, Newton, TrustRegion
from tests.problems import L, assert_agree, normal, trajectory

WEIGHT = normal(0, 3, 3, scale=0.5)
CHAIN = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), normal(1, L, 3))
Z0 = normal(2, 3)
METHODS = {
    "damped, in a window": Newton(damping=TrustRegion(), window=4, record=True),
    "from coarse steps": Newton(initial_guess=Coarse(every=3), record=True),
    "identity, accelerated, in a window": Newton(
        linearize="identity", acceleration=Anderson(), window=4, record=True
    ),
}


@pytest.fixture(autouse=True)
def _debug():
    with jax.debug_nans(True):
        yield


@pytest.mark.parametrize("name", METHODS)
def test_a_healthy_chain(name):
    solution = deeppcr.solve(CHAIN, Z0, method=METHODS[name])
    assert_agree(solution.trajectory, trajectory(CHAIN, Z0))
    if METHODS[name].record:
        iterations = int(solution.stats.iterations)
        assert np.isfinite(solution.stats.residuals[: iterations + 1]).all()
        assert np.isinf(solution.stats.residuals[iterations + 1 :]).all()
        assert f"iterations   {iterations}\n" in str(solution)


@pytest.mark.parametrize(
    ("method", "adjoint", "compiled"),
    [
        (Newton(max_iterations=2, record=True), "pcr", True),
        ("sequential", deeppcr.Adjoint(linearize="diagonal"), False),
    ],
    ids=["after a fallback", "diagonal"],
)
def test_adjoints(method, adjoint, compiled):
    gradient = jax.grad(
        lambda z: deeppcr.solve(CHAIN, z, method=method, adjoint=adjoint).value.sum()
    )
    gradient = (jax.jit(gradient) if compiled else gradient)(Z0)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("method", ["auto", "newton"])
def test_a_step_that_makes_one(method):
    scan = partial(deeppcr.scan, lambda z, x: (jnp.log(z - 5.0), None), Z0, length=3, method=method)
    for call in (scan, jax.jit(scan)):
        with pytest.raises(FloatingPointError):
            call()
