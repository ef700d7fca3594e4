"""Of candidates that are nearly as fast as the fastest, the smallest is the best."""

import jax
import pytest

import deeppcr
import depth
from deeppcr._plan.candidates import Candidates
from deeppcr._plan.choose import best_gradient, best_method
from tests.plan.chains import CHAINS, costs_of, gated

BY_BLOCKS, STEP_BY_STEP = "sequential / blocks, sequential", "sequential / backprop"


@pytest.mark.parametrize(
    ("length", "ratio", "best"),
    [(1 << 20, 1.05, STEP_BY_STEP), (1 << 20, 1.2, BY_BLOCKS), (1 << 4, 1.05, BY_BLOCKS)],
)
def test_the_smaller_one_if_it_takes_little_more_time(length, ratio, best):
    inputs, state = (jax.ShapeDtypeStruct(shape, "float64") for shape in ((length, 2), (3,)))
    costs, device = costs_of(deeppcr.Chain(gated, inputs), state), depth.devices["H200"]
    candidates = Candidates(costs, device, trials={BY_BLOCKS: 1e-9, STEP_BY_STEP: ratio * 1e-9})
    first, second = best_gradient(candidates, deeppcr.Sequential(), everything=True)[:2]
    assert {first.name, second.name} == {BY_BLOCKS, STEP_BY_STEP}
    assert first.name == best
    assert (first.memory < second.memory) == (best == STEP_BY_STEP)


def test_the_sequential_program_takes_none_and_has_its_own_margin():
    costs, device = costs_of(*CHAINS["gru"]), depth.devices["H200"]
    times = {"Newton, dense, pcr": 0.95, "sequential": 1.0}
    best = best_method(Candidates(costs, device, trials=times), everything=True)[0]
    assert best.name == "Newton, dense, pcr"
    assert best.memory > 0
