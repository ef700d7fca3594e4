"""What a plan says: a table with a line for every candidate, and JSON with all of it."""

import json
import math

import pytest

import deeppcr
import depth
from tests.plan.chains import CHAINS, like
from tests.problems import PROBLEMS

PLANS = {
    "Newton": lambda: deeppcr.plan(*like(), device="H200"),
    "sequential": lambda: deeppcr.plan(*like(), device=depth.device.generic_cpu(2)),
    "TPU": lambda: deeppcr.plan(*CHAINS["gru"], device="TPU v5e"),
    "many iterations": lambda: deeppcr.plan(*CHAINS["gru"], device="V100", iterations=100),
    "one step": lambda: deeppcr.plan(*like(length=1), device="H200"),
    "too large": lambda: deeppcr.plan(*like(), device=depth.devices["H200"].replace(memory=1e5)),
    "own rule": lambda: deeppcr.plan(
        deeppcr.Chain(
            lambda z, x: PROBLEMS["custom vjp"].step(PROBLEMS["custom vjp"].params, z, x)[0],
            PROBLEMS["custom vjp"].xs,
        ),
        PROBLEMS["custom vjp"].init,
        device="H200",
    ),
}


@pytest.fixture(scope="module")
def plans():
    """One of each."""
    return {}


@pytest.fixture(params=PLANS)
def plan(request, plans):
    if request.param not in plans:
        plans[request.param] = PLANS[request.param]()
    return plans[request.param]


def finite(value):
    if isinstance(value, dict | list):
        return all(map(finite, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str) or math.isfinite(value)


def test_json_has_every_candidate_and_finite_numbers(plan):
    found = json.loads(plan.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert finite(found)
    assert found["method"] == str(plan.method)
    assert found["adjoint"] == str(plan.adjoint)
    assert found["predicted_speedup"] == plan.predicted_speedup
    (chain,) = found["chains"]
    for kind in ("forward", "gradient"):
        candidates = getattr(plan.main, kind)
        assert [each["name"] for each in chain[kind]] == [
            candidate.name for candidate in candidates
        ]
        assert [each["depth"] for each in chain[kind]] == [
            candidate.cost.depth for candidate in candidates
        ]
        assert all(each["predicted_seconds"] > 0 for each in chain[kind])


def test_names_tell_candidates_apart(plan):
    for candidates in (plan.main.forward, plan.main.gradient):
        names = [candidate.name for candidate in candidates]
        assert len(set(names)) == len(names)


def test_the_table_has_a_line_for_every_candidate_and_one_is_chosen(plan):
    lines = str(plan).splitlines()
    middle = next(i for i, line in enumerate(lines) if line.startswith("gradient"))
    head = next(i for i, line in enumerate(lines) if line.startswith("forward"))
    for rows, candidates in (
        (lines[head + 1 : middle], plan.main.forward),
        (lines[middle + 1 :], plan.main.gradient),
    ):
        assert [row.strip().split("  ")[0] for row in rows] == [
            candidate.name for candidate in candidates
        ]
        assert ["chosen" in row for row in rows] == [True] + [False] * (len(rows) - 1)
    assert "measured" not in lines[head]
    assert not any(line != line.rstrip() for line in lines)


def test_what_is_chosen_ranks_first(plan):
    memory = plan.main.device.memory
    for candidates in (plan.main.forward, plan.main.gradient):
        (sequential,) = (candidate for candidate in candidates if candidate.is_sequential)
        # Among those that "auto" can take: the forward pass is chosen before it is known whether
        # a gradient is wanted.
        rest = [candidate for candidate in candidates if candidate is not sequential]
        reachable = [
            candidate
            for candidate in rest
            if candidates is plan.main.forward or candidate.method == plan.method
        ]
        others = [(candidate.memory > memory, candidate.seconds) for candidate in reachable]
        assert others == sorted(others)
        assert rest[: len(reachable)] == reachable
        best = candidates[0]
        if best is sequential:  # so it is unless much is to be gained
            assert not others or others[0] > (False, best.seconds / 2)
        else:
            assert others[0] < (False, sequential.seconds)
    assert plan.method == plan.main.forward[0].method
    assert plan.adjoint == plan.main.gradient[0].adjoint


def test_speedups_are_at_least_one(plan):
    assert plan.depth_speedup >= 1
    assert plan.predicted_speedup >= 1
    assert plan.gradient_speedup >= 1


def test_no_word_contradicts_the_choice(plan):
    for kind in ("forward", "gradient"):
        first, *rest = json.loads(plan.to_json())["chains"][0][kind]
        assert first["verdict"].startswith("chosen")
        assert "pays off" not in first["verdict"]
        assert not any(each["verdict"].startswith("chosen") for each in rest)


def test_the_depth_speedup_is_that_of_the_shallowest():
    plan = PLANS["Newton"]()
    depths = {candidate.name: candidate.cost.depth for candidate in plan.main.forward}
    assert plan.depth_speedup == depths["sequential"] / min(depths.values()) > 10
