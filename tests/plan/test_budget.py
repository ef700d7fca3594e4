"""Never worse than twice: a planned Newton stops when it has taken the sequential time."""

import re

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.plan.chains import L, elementwise, plan_like
from tests.problems import assert_agree, normal, trajectory

LONG = 1024


def logistic(z, _):
    return 3.9 * z * (1 - z)


CHAOTIC = {
    "logistic map": (deeppcr.Chain(logistic, length=LONG), jnp.linspace(0.1, 0.8, 8), 1),
}


@pytest.mark.parametrize("name", CHAOTIC)
def test_a_chain_that_does_not_suit_newton_is_finished_in_order(name):
    chain, z0, batch_ndim = CHAOTIC[name]
    shapes = jax.eval_shape(lambda: z0)  # with arrays the plan would see that it does not suit
    found = deeppcr.plan(chain, shapes, device="H200", batch_ndim=batch_ndim)
    assert isinstance(found.method, deeppcr.Newton)
    best = found.main.forward[0]
    assert found.method.max_iterations * best.iteration_seconds <= found.main.sequential.seconds
    solution = jax.jit(
        lambda z: deeppcr.solve(chain, z, method=found.method, batch_ndim=batch_ndim)
    )(z0)
    assert solution.result == deeppcr.Result.FINISHED_SEQUENTIALLY
    assert int(solution.stats.iterations) <= found.method.max_iterations
    assert int(solution.stats.prefix) < LONG
    assert_agree(solution.trajectory, trajectory(chain, z0))


@pytest.mark.parametrize(
    ("device", "shape", "iterations"),
    [("H200", (64, 4096), None), ("V100", (1, 64), 1000)],
)
def test_the_budget_of_every_candidate(device, shape, iterations):
    plan = plan_like(*shape, device=device, iterations=iterations).main
    newton = [one for one in plan.forward if isinstance(one.method, deeppcr.Newton)]
    assert newton
    for candidate in newton:
        budget = candidate.method.max_iterations
        assert budget == 1 or budget * candidate.iteration_seconds <= plan.sequential.seconds
        assert (budget + 1) * candidate.iteration_seconds > plan.sequential.seconds
        assert candidate.method.on_failure == "sequential"
    best = plan.forward[0]
    is_loop = isinstance(best.method, deeppcr.Sequential)
    assert is_loop == (device == "V100")  # so many iterations do not pay
    assert is_loop or best.iterations <= best.method.max_iterations


def limits(chain, z0, **options):
    """What counters of loops are compared with, in the program of a solve."""
    program = jax.make_jaxpr(lambda z: deeppcr.solve(chain, z, **options).value)(z0)
    return re.findall(r"= lt \w+ (\d+):i32\[\]", str(program))


def test_auto_has_the_budget_that_is_planned(parallel):
    chain, z0 = deeppcr.Chain(elementwise, normal(0, L, 4)), normal(1, 4)
    planned = deeppcr.plan(chain, jax.eval_shape(lambda: z0)).method
    auto = limits(chain, z0)
    assert planned.max_iterations > 1
    assert str(L + 1) in auto  # no more can be needed
    assert auto == limits(chain, z0, method=planned)
    other = deeppcr.Newton(linearize="diagonal", linear="pcr", max_iterations=1)
    assert auto != limits(chain, z0, method=other)
