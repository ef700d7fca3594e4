"""What a plan says: a table with a line for every candidate, and JSON with all of it."""

import json
import math

import jax.numpy as jnp
import pytest

import deeppcr
import depth
from deeppcr._plan.choose import NEAR
from tests.plan.chains import CHAINS, like, plan_like

PLANS = {
    "Newton": plan_like,
    "sequential": lambda: deeppcr.plan(*like(), device=depth.models.generic_cpu(2)),
    "TPU": lambda: deeppcr.plan(*CHAINS["gru"], device="TPU v5e"),
    "many iterations": lambda: plan_like(1, 64, device="V100", iterations=1000),
    "one step": lambda: deeppcr.plan(*like(length=1), device="H200"),
    "too large": lambda: deeppcr.plan(*like(), device=depth.devices["H200"].replace(memory=1e5)),
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


def rows(text):
    """The rows of a forward pass, and those of a gradient."""
    lines = text.splitlines()
    head, middle = (
        next(i for i, line in enumerate(lines) if line.startswith(word + "  "))
        if word == "forward"
        else lines.index(word)
        for word in ("forward", "gradient")
    )
    end = len(lines) - ("more: plan.table()" in lines[-1])
    return lines[head + 1 : middle], lines[middle + 1 : end]


def test_the_table_has_a_line_for_every_candidate_by_time_and_one_is_chosen(plan):
    text = plan.table()
    for lines, candidates in zip(rows(text), (plan.main.forward, plan.main.gradient), strict=True):
        names = {candidate.name: candidate for candidate in candidates}
        shown = [names.pop(line.strip().split("  ")[0]) for line in lines]
        assert not names
        fitting = [each.time for each in shown if "do not fit" not in reason_of(each, plan)]
        assert fitting == sorted(fitting)
        assert [each for each, line in zip(shown, lines, strict=True) if "chosen" in line] == [
            candidates[0]
        ]
    assert "measured" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def reason_of(candidate, plan):
    return next(line for line in plan.table().splitlines() if f"  {candidate.name}  " in line)


def test_what_is_printed_are_the_three_fastest_and_the_chosen(plan):
    printed, whole = rows(str(plan)), rows(plan.table())
    for some, every in zip(printed, whole, strict=True):
        assert len(some) == min(3, len(every))
        # The widths of columns depend on what is shown.
        names = [[line.split("  ")[1] for line in lines] for lines in (some, every)]
        assert names[0][:2] == names[1][:2] or "chosen" in some[-1]
        assert sum("chosen: " in line for line in some) == 1
    hidden = sum(len(every) - len(some) for some, every in zip(printed, whole, strict=True))
    last = str(plan).splitlines()[-1]
    assert last == f"{hidden} more: plan.table()" if hidden else "more" not in last


def test_what_is_chosen_ranks_first(plan):
    memory = plan.main.device.memory
    for candidates in (plan.main.forward, plan.main.gradient):
        (sequential,) = (candidate for candidate in candidates if candidate.is_sequential)
        # Among those that "auto" can take: the forward pass is chosen before it is known whether
        # a gradient is wanted.
        known = [candidate for candidate in candidates if not candidate.on_request]
        assert list(candidates[: len(known)]) == known
        rest = [candidate for candidate in known if candidate is not sequential]
        reachable = [
            candidate
            for candidate in rest
            if candidates is plan.main.forward or candidate.method == plan.method
        ]
        others = [(candidate.memory > memory, candidate.seconds) for candidate in reachable]
        # The best of them may be one that is nearly as fast as the fastest, and smaller.
        leads = candidates[0] is reachable[0]
        assert others[leads:] == sorted(others[leads:])
        assert others[0] <= (min(others)[0], NEAR * min(others)[1])
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


@pytest.mark.parametrize("plan", ["Newton"], indirect=True)
def test_the_depth_speedup_is_that_of_the_shallowest(plan):
    depths = {candidate.name: candidate.cost.depth for candidate in plan.main.forward}
    assert plan.depth_speedup == depths["sequential"] / min(depths.values()) > 10


def test_a_list_on_a_cpu_compiles_as_quickly_as_possible():
    layers = [lambda x, w=w: jnp.tanh(w * x) for w in jnp.linspace(0.1, 0.9, 16)]
    x, cpu = jnp.ones(3), depth.models.generic_cpu(2)
    listed, stacked = (
        deeppcr.plan(each, x, device=cpu) for each in (layers, deeppcr.stack(layers))
    )
    assert "note" in str(listed)
    assert "deeppcr.stack(layers)" in str(listed)
    assert "note" not in str(stacked)
    assert "note" not in str(deeppcr.plan(layers, x, device="H200"))
    assert (listed.method, listed.adjoint) == (stacked.method, stacked.adjoint)
