"""The experiment on predicted times.

What is listed, what rows say, and how long an analysis takes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depth
from depth.jaxprs import without_constants
from experiments.bench.costs import analyze
from experiments.bench.engine import Case, Variant
from experiments.prediction import analysis
from experiments.prediction import run as prediction
from tests.experiments.conftest import DEVICE


@pytest.fixture
def as_users_have_it():
    """float32, and the usual promotion."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """What is listed, without the numbers."""

    def abstract(*shape: int, scale: float = 1.0) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "float32")

    monkeypatch.setattr(prediction, "normal", abstract)
    return list(prediction.cases())


def programs(case: Case) -> dict[str, Any]:
    return {**case.baselines, **case.variants}


def test_what_is_listed(listed: list[Case]) -> None:
    names = [(case.labels["chain"], name) for case in listed for name in programs(case)]
    assert len(names) == len(set(names)) == 45
    kinds = {chain.split()[0] for chain, _ in names}
    assert kinds == {"gru", "mlp", "recurrence", "halving"}
    sequential = {case.plain for case in listed}
    assert sequential == {"scan", "unrolled", "sequential", "while_loop"}
    assert {"pcr", "newton", "auto"} < {name for _, name in names}
    assert sum(len(case.variants) for case in listed) == 2 * 2 + 3 * 4  # GRUs, recurrences
    quick = list(prediction.cases(quick=True))
    assert {case.labels["chain"].split()[0] for case in quick} == kinds
    assert sum(len(programs(case)) for case in quick) < 15


def test_everything_listed_can_be_analyzed_and_predicted(listed: list[Case]) -> None:
    """One of each kind."""
    open_ended, seen = 0, set()
    for case in listed:
        for name, given in programs(case).items():
            chain = case.labels["chain"]
            kind = (chain.split()[0], "gradient" in chain, name)
            if kind in seen:
                continue
            seen.add(kind)
            counted = isinstance(given, Variant)
            run = given.run if counted else given
            cost = analyze(run, *case.arguments[0], trips=7 if counted else None)
            assert cost.exact, f"{name} has a loop whose trips are not listed: {cost.unknown}"
            assert cost.depth > 0
            assert 0 < depth.predict(cost, DEVICE) < 10
            open_ended += counted
    assert open_ended == 2


def test_normal_numbers_are_the_same_each_time() -> None:
    first, second = prediction.normal(3, 4), prediction.normal(3, 4)
    assert first.shape == (3, 4)
    assert (first == second).all()
    assert jnp.allclose(prediction.normal(3, 4, scale=0.5), first / 2)


def test_the_iterations_of_newton_are_counted() -> None:
    run, arguments = prediction.recurrent(2, 8, 1)
    variant = prediction.newton(2, 8, 1)
    with jax.numpy_dtype_promotion("standard"):
        solution = variant.solve(*arguments)
        assert 1 <= int(solution.stats.iterations) <= 8
        assert jnp.allclose(solution.trajectory, run(*arguments), atol=1e-5)


def test_a_gradient_is_to_all_arguments() -> None:
    args = jnp.full(2, 3.0), jnp.full(2, 5.0)
    got = prediction.gradient(lambda a, b: a * b, args)(*args)
    assert len(got) == 2
    assert jnp.allclose(got[0], 75.0)  # of the mean of (a b)^2 over two: a b^2
    assert jnp.allclose(got[1], 45.0)


def test_halving_goes_on_as_long_as_it_says() -> None:
    run, args = prediction.halving(8, 5)
    assert run(*args)[0] == 2.0**-5


@pytest.mark.usefixtures("as_users_have_it")
def test_the_command_runs_from_start_to_end(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = [(jnp.ones(8),)]

    def case(chain: str, run: Any, **others: Any) -> Case:
        return Case({"part": "times", "chain": chain}, ones, {"plain": run}, others)

    halving, _ = prediction.halving(8, 3)
    toys = [
        case("sines", lambda x: jnp.sin(jnp.sin(x) - 0.0) * 0.5, one=jnp.sin),
        case("until", Variant(halving, iterations=lambda: 3)),
    ]
    small = [("straight line", analysis.straight(30, 2)), ("5 doublings", analysis.doublings(5))]
    monkeypatch.setattr(prediction, "cases", lambda quick: iter(toys))
    monkeypatch.setattr(analysis, "programs", lambda: iter(small))
    rows, text = run_command(prediction, "--repeats", "2")
    assert "\n3 median times: " in text
    assert "\n3 minima: " in text
    times, analysed = ([row for row in rows if row["part"] == part] for part in prediction.PARTS)
    assert [row["depth"] for row in times] == [4, 1, 7]  # until: comparisons, quotients, the last
    for row in times:
        assert 2 ** row["log2"] == pytest.approx(row["predicted ms"] / row["ms"])
        assert 0 < row["min ms"] <= row["ms"] <= row["max ms"]
        assert {"repeats", "work", "temp MB", "trace s", "compile s"} <= row.keys()
    one = times[1]
    assert one["note"].startswith("wrong: differs from plain by ")
    expected = np.sin(np.sin(1.0)) / 2
    assert one["error"] == pytest.approx((np.sin(1.0) - expected) / expected, rel=1e-6)
    found = [(row["program"], row["equations"], row["depth"]) for row in analysed]
    assert found == [("straight line", 30, 30), ("5 doublings", 11, 32)]
    for row in analysed:
        assert min(row["trace s"], row["first s"], row["analyse s"]) > 0
        assert row["repeats"] == 2


def test_the_summary() -> None:
    """Ten ms, measured as 10, 20, 5, 40, 2.5 ...: off by 0, 1, 2, ... powers of two.

    Minima are a quarter of these.
    """
    signs = [-1, 1] * 6
    rows = [
        {
            "predicted ms": 10,
            "log2": -signs[k] * k,
            "part": "times",
            "baseline": k != 3,
            "min ms": 2.5 * 2.0 ** (signs[k] * k),
        }
        for k in range(11)
    ]
    rows[3] |= {"predicted speedup": 8, "speedup": 2}
    has = "|log2(predicted / measured)| has a median of"
    assert list(prediction.summary(rows)) == [
        f"11 median times: {has} 5.00 and a 90th percentile of 9.00",
        f"11 minima: {has} 5.00 and a 90th percentile of 10.00",
        f"1 speedups: {has} 2.00 and a 90th percentile of 2.00",
    ]
    assert list(prediction.summary([])) == []


def equations(program: analysis.Program) -> int:
    run, args = program
    return analysis.size(without_constants(jax.make_jaxpr(run)(*args)))


def test_a_program_inside_counts_once() -> None:
    assert equations(analysis.straight(30, 2)) == 30
    run, args = analysis.straight(30, 2)
    assert equations((jax.jit(run), args)) == 31
    assert equations(analysis.doublings(5)) == 2 * 5 + 1  # two calls a level, and one sine
