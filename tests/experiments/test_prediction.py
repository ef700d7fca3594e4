"""Predicted against measured: what is listed, and the command at a size that takes a second."""

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

import deeppcr
import depth
from experiments import prediction
from experiments.common import results

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
def listed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, prediction.Program, int | None]]:
    """What is listed, without the numbers, and without running Newton's method for its turns."""
    monkeypatch.setattr(prediction, "normal", abstract)
    monkeypatch.setattr(prediction, "newton_turns", lambda *args: 7)
    return list(prediction.programs())


def test_what_is_listed(listed: list[tuple[str, prediction.Program, int | None]]) -> None:
    names = [name for name, _, _ in listed]
    assert len(names) >= 30
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for kind in ("gru", "mlp", "recurrence", "gradient", "scan", "unrolled", "sequential", "pcr", "newton", "halving"):
        assert any(kind in name for name in names), kind
    assert any("gradient" not in name for name in names)


def test_everything_listed_can_be_analyzed_and_predicted(listed: list[tuple[str, prediction.Program, int | None]]) -> None:
    for name, (run, args), turns in listed:
        cost = depth.analyze(run, *args, trip_counts=turns)
        assert cost.exact, f"{name} has a loop whose turns are not listed: {cost.unknown}"
        assert cost.depth > 0, name
        assert 1e-5 < depth.predict(cost, DEVICE) < 10, name


def test_turns_are_listed_where_they_cannot_be_known(listed: list[tuple[str, prediction.Program, int | None]]) -> None:
    for name, (run, args), turns in listed:
        if turns is not None:
            assert not depth.analyze(run, *args).exact, name


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


def test_the_least_time_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "ROUNDS", 2)
    calls: Counter[str] = Counter()
    times = prediction.measured({name: partial(calls.update, [name]) for name in "ab"})
    assert list(times) == ["a", "b"]
    assert all(0 < time < 1 for time in times.values())
    assert calls["a"] == calls["b"] > 10


def sine(x: Array) -> Array:
    return jnp.sin(x)


def until(x: Array) -> Array:
    return lax.while_loop(lambda x: x[0] > 2.0**-3, lambda x: x / 2, x)


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the calibration was called."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(depth, "calibrate", lambda **options: calls.append(options) or DEVICE)
    return calls


def test_the_command_runs_from_start_to_end(
    monkeypatch: pytest.MonkeyPatch, calibrations: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = [("sine", (sine, (jnp.ones(8),)), None), ("until", (until, (jnp.ones(8),)), 3)]
    monkeypatch.setattr(prediction, "programs", lambda: iter(programs))
    monkeypatch.setattr(prediction, "ROUNDS", 1)
    monkeypatch.setattr(prediction, "write", partial(results.write, folder=tmp_path))
    prediction.main(["--keep", "toy"])
    lines = capsys.readouterr().out.splitlines()
    path = tmp_path / results.device() / "toy.jsonl"
    assert lines[0].split() == ["program", "depth", "work", "predicted", "measured", "log2"]
    assert [line.split()[0] for line in lines[2:4]] == ["sine", "until"]
    assert lines[4].startswith("2 programs; |log2(predicted / measured)|: median ")
    assert lines[5:] == [f"kept in {path}"]
    _, rows = results.read(path)
    assert [row["program"] for row in rows] == ["sine", "until"]
    assert [row["depth"] for row in rows] == [1, 7]  # three comparisons and quotients, and the comparison that ends it
    for row, (_, (run, args), turns) in zip(rows, programs, strict=True):
        assert row["predicted"] == pytest.approx(1e6 * depth.predict(depth.analyze(run, *args, trip_counts=turns), DEVICE))
        assert 2 ** row["log2"] == pytest.approx(row["predicted"] / row["measured"])
    assert calibrations == [{"refresh": True}]


def test_the_summary(
    monkeypatch: pytest.MonkeyPatch, calibrations: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Eleven programs of 10 us, measured as 10, 20, 5, 40, 2.5 ...: off by 0, 1, 2, ... powers of two."""
    names = [f"program {k}" for k in range(11)]
    monkeypatch.setattr(prediction, "programs", lambda: ((name, (lambda x: x, (jnp.ones(8),)), None) for name in names))
    monkeypatch.setattr(prediction, "build", lambda run, *args: SimpleNamespace(call=run))
    signs = [-1, 1] * 6
    monkeypatch.setattr(
        prediction, "measured", lambda calls: {name: 1e-5 * 2.0 ** (signs[k] * k) for k, name in enumerate(calls)}
    )
    prediction.main(["--kept"])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "11 programs; |log2(predicted / measured)|: median 5.00, 90th percentile 9.00"
    )
    assert calibrations == [{"refresh": False}]


def test_the_options_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        prediction.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "--kept" in text
    assert "--keep" in text
