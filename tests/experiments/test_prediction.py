"""Predicted against measured: what is listed, and the command at a size that takes a second."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import deeppcr
import depth
from experiments import prediction
from experiments.common import results, timing
from experiments.common.costs import analyze
from experiments.prediction import Listed

DEVICE = depth.Device(
    "made up",
    call_latency=1e-5,
    kernel_latency=1e-6,
    loop_latency=1e-6,
    turn_latency=1e-6,
    rates={"float32": 1e11},
    bandwidth=1e10,
    memory=1e9,
)


def abstract(*shape: int, scale: float = 1.0) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Listed]:
    """What is listed, without the numbers, and without running Newton's method for its turns."""
    monkeypatch.setattr(prediction, "normal", abstract)
    monkeypatch.setattr(prediction, "newton_turns", lambda *args: 7)
    return list(prediction.programs())


def test_what_is_listed(listed: list[Listed]) -> None:
    names = [(one.chain, one.name) for one in listed]
    assert len(names) == len(set(names)) >= 30
    assert {one.chain.split()[0] for one in listed} == {"gru", "mlp", "recurrence", "halving"}
    assert {"scan", "unrolled", "sequential", "pcr", "newton", "auto"} < {
        one.name for one in listed
    }
    assert 10 < sum("gradient" in one.chain for one in listed) < len(listed) - 10


def test_the_first_program_of_a_chain_is_the_sequential_one(listed: list[Listed]) -> None:
    first: dict[str, str] = {}
    for one in listed:
        first.setdefault(one.chain, one.name)
    assert set(first.values()) == {"scan", "unrolled", "sequential", "while_loop"}
    assert (
        sum(one.name != first[one.chain] for one in listed) == 2 * 2 + 3 * 4
    )  # of GRUs and of recurrences


@pytest.mark.usefixtures("listed")
def test_a_quick_run_has_all_kinds_in_one_size() -> None:
    quick = list(prediction.programs(quick=True))
    assert {one.chain.split()[0] for one in quick} == {"gru", "mlp", "recurrence", "halving"}
    assert len(quick) < 15


def test_everything_listed_can_be_analyzed_and_predicted(listed: list[Listed]) -> None:
    for one in listed:
        run, args = one.program
        cost = analyze(run, *args, turns=one.turns)
        assert cost.exact, f"{one} has a loop whose turns are not listed: {cost.unknown}"
        assert cost.depth > 0, one
        assert 1e-5 < depth.predict(cost, DEVICE) < 10, one


def test_turns_are_listed_where_they_cannot_be_known(listed: list[Listed]) -> None:
    loops = [one for one in listed if one.turns is not None]
    assert len(loops) == 4
    for one in loops:
        run, args = one.program
        assert not analyze(run, *args).exact, one


def test_normal_numbers_are_the_same_each_time() -> None:
    first, second = prediction.normal(3, 4), prediction.normal(3, 4)
    assert first.shape == (3, 4)
    assert (first == second).all()
    assert jnp.allclose(prediction.normal(3, 4, scale=0.5), first / 2)


def test_the_turns_of_newton_are_counted() -> None:
    turns = prediction.newton_turns(2, 8, 1, deeppcr.Newton(on_failure="return"))
    assert type(turns) is int
    assert 1 <= turns <= 8


def test_a_gradient_is_to_all_arguments() -> None:
    run, args = prediction.gradient((lambda a, b: a * b, (jnp.full(2, 3.0), jnp.full(2, 5.0))))
    got = run(*args)
    assert len(got) == 2
    assert jnp.allclose(got[0], 75.0)  # of the mean of (a b)^2 over two: a b^2
    assert jnp.allclose(got[1], 45.0)


def test_halving_turns_as_often_as_it_says() -> None:
    run, args = prediction.halving(8, 5)
    assert run(*args)[0] == 2.0**-5


@pytest.mark.parametrize(("seconds", "calls"), [(1e-6, 100), (1 / 256, 25), (1.0, 7)])
def test_short_programs_are_called_more_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    monkeypatch.setattr(timing, "clock", lambda call: seconds)
    assert prediction.measured(lambda: None, repeats=7).seconds == (seconds,) * calls


def sine(x: Array) -> Array:
    return jnp.sin(x)


def sines(x: Array) -> Array:
    return jnp.sin(jnp.sin(x) - 0.0) * 0.5


def until(x: Array) -> Array:
    return lax.while_loop(lambda x: x[0] > 2.0**-3, lambda x: x / 2, x)


ONES = (jnp.ones(8),)
TOYS = [
    Listed("sines", "two", (sines, ONES)),
    Listed("until", "loop", (until, ONES), 3),
    Listed("sines", "one", (sine, ONES)),
]


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the calibration was called."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(depth, "calibrate", lambda **options: calls.append(options) or DEVICE)
    return calls


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three small programs, two of them of one chain, and few calls."""
    monkeypatch.setattr(prediction, "programs", lambda quick: iter(TOYS))
    monkeypatch.setattr(prediction, "MOST_CALLS", 1)


@pytest.mark.usefixtures("toys")
def test_the_command_runs_from_start_to_end(
    calibrations: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prediction.main(["--keep", "toy", "--out", str(tmp_path), "--repeats", "2"])
    lines = capsys.readouterr().out.splitlines()
    folder = tmp_path / results.device()
    assert lines[0].split()[:6] == ["chain", "program", "depth", "predicted", "ms", "ms"]
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["sines", "two"],
        ["until", "loop"],
        ["sines", "one"],
    ]
    assert [line.split(":")[0] for line in lines[5:8]] == [
        "3 median times",
        "3 least times",
        "1 speedups",
    ]
    assert lines[8:] == [f"kept in {folder / 'toy.jsonl'}", f"drawn in {folder / 'toy.png'}"]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    assert [row["depth"] for row in rows] == [
        4,
        7,
        1,
    ]  # until: three comparisons and quotients, and the comparison that ends it
    for row, one in zip(rows, TOYS, strict=True):
        run, args = one.program
        assert row["predicted ms"] == pytest.approx(
            1e3 * depth.predict(depth.analyze(run, *args, trip_counts=one.turns), DEVICE)
        )
        assert 2 ** row["log2"] == pytest.approx(row["predicted ms"] / row["ms"])
        assert 0 < row["min ms"] <= row["ms"] <= row["max ms"]
        assert row["trace s"] > 0
        assert row["compile s"] > 0
        assert {"repeats", "work", "temp MB"} <= row.keys()
    assert calibrations == [{"refresh": False}]


@pytest.mark.usefixtures("toys", "calibrations")
def test_programs_of_one_chain_are_compared() -> None:
    two, until, one = prediction.compare(iter(TOYS), DEVICE, repeats=1)
    assert not {"speedup", "error"} & (two.keys() | until.keys())
    assert one["depth speedup"] == 4
    assert one["predicted speedup"] == pytest.approx(two["predicted ms"] / one["predicted ms"])
    assert one["speedup"] == pytest.approx(two["ms"] / one["ms"])
    expected = np.sin(np.sin(1.0)) / 2
    assert one["error"] == pytest.approx(
        (np.sin(1.0) - expected) / expected
    )  # that is not the same, and it says so


@pytest.mark.usefixtures("toys", "calibrations")
def test_what_is_stopped_midway_leaves_what_it_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        prediction,
        "programs",
        lambda quick: iter([TOYS[0], Listed("broken", "broken", (stopped, ()))]),
    )
    with pytest.raises(KeyboardInterrupt):
        prediction.main(["--keep", "toy", "--out", str(tmp_path)])
    environment, rows = results.read(tmp_path / results.device() / "toy.jsonl")
    assert environment["complete"] is False
    assert [row["program"] for row in rows] == ["two"]


@pytest.mark.usefixtures("toys")
def test_a_calibration_is_made_anew_if_asked_for(
    calibrations: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    prediction.main(["--calibrate", "--seconds", "-1"])
    assert calibrations == [{"refresh": True}]
    assert "stopped after -1 s" in capsys.readouterr().out


def test_the_summary() -> None:
    """Ten ms, measured as 10, 20, 5, 40, 2.5 ...: off by 0, 1, 2, ... powers of two; least times are a quarter of these."""
    signs = [-1, 1] * 6
    rows = [
        {"predicted ms": 10, "log2": -signs[k] * k, "min ms": 2.5 * 2.0 ** (signs[k] * k)}
        for k in range(11)
    ]
    rows[3] |= {"predicted speedup": 8, "speedup": 2}
    assert prediction.summary(rows) == [
        "11 median times: |log2(predicted / measured)| is 5.00 in the median, 9.00 at the 90th percentile",
        "11 least times: |log2(predicted / measured)| is 5.00 in the median, 10.00 at the 90th percentile",
        "1 speedups: |log2(predicted / measured)| is 2.00 in the median, 2.00 at the 90th percentile",
    ]
    assert prediction.summary([]) == []


def test_the_options_are_those_of_all_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        prediction.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for option in ("--quick", "--keep", "--out", "--plot", "--repeats", "--seconds", "--calibrate"):
        assert option in text
