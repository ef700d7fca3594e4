"""The demo, at a size that takes seconds: every way to run the layers is the same training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments import digits
from experiments.bench import results, timing
from experiments.bench.engine import distance
from experiments.models import data

SETTINGS = digits.Settings(depth=12, width=4, batch=8, steps=6)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion() -> Iterator[None]:
    """Optax raises a float to the power of an int32 counter, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def trainings(standard_promotion: None) -> dict[str, digits.Training]:
    split = data.digits()
    return {name: digits.train(name, stack, SETTINGS, split) for name, stack in digits.RUNS.items()}


@pytest.mark.parametrize("name", [digits.AUTO, digits.PARALLEL])
def test_losses_and_gradients_agree_with_layer_by_layer(
    trainings: dict[str, digits.Training], name: str
) -> None:
    baseline, run = trainings[digits.BASELINE], trainings[name]
    assert len(run.losses) == SETTINGS.steps
    np.testing.assert_allclose(run.losses, baseline.losses, rtol=1e-5)
    assert distance(run.gradient, baseline.gradient) < 1e-5
    assert run.accuracy == pytest.approx(baseline.accuracy, abs=0.01)


def test_iterations_are_counted(trainings: dict[str, digits.Training]) -> None:
    assert (trainings[digits.BASELINE].iterations == 0).all()
    parallel = trainings[digits.PARALLEL].iterations
    assert (parallel >= 1).all()
    assert (parallel <= SETTINGS.depth).all()


def test_batches_cover_each_epoch_once_and_are_the_same_for_every_run() -> None:
    settings = digits.Settings(batch=5, steps=4)
    chosen = digits.batches(settings, examples=10)
    assert sorted(chosen[:2].ravel()) == sorted(chosen[2:].ravel()) == list(range(10))
    np.testing.assert_array_equal(chosen, digits.batches(settings, examples=10))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "2.0x faster than"), (1.0, "as fast as"), (3.0, "3.0x slower than")],
)
def test_times_are_compared_in_plain_words(seconds: float, words: str) -> None:
    assert digits.compared(seconds, 1.0) == words


def test_what_it_shows(trainings: dict[str, digits.Training], tmp_path: Path) -> None:
    times = {
        name: timing.Timing((3e-3 * (1 + number), 1e-3, 5e-3))
        for number, name in enumerate(trainings)
    }
    rows = digits.rows(trainings, times)
    assert [row["run"] for row in rows] == list(digits.RUNS)
    assert [row["ms"] for row in rows] == pytest.approx([3, 5, 5])  # medians
    assert [row["min ms"] for row in rows] == pytest.approx([1, 1, 1])
    assert [row["time"] for row in rows] == pytest.approx([1, 5 / 3, 5 / 3])
    assert all(row["trace s"] > 0 and row["compile s"] > 0 and row["temp MB"] > 0 for row in rows)
    cells = digits.printed(rows[1])
    assert cells["time"] == "1.67x"
    assert cells["accuracy"] == f"{100 * trainings[digits.AUTO].accuracy:.1f}%"
    assert digits.summary(SETTINGS, trainings, times).startswith("Same training: over 6 steps")
    digits.draw(tmp_path / "digits.png", trainings, times)
    assert (tmp_path / "digits.png").stat().st_size > 0


def test_the_command_runs_from_start_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--depth", "3", "--width", "2", "--batch", "4", "--steps", "2", "--repeats", "3"]
    digits.main([*small, "--keep", "toy", "--out", str(tmp_path)])
    folder = tmp_path / results.device()
    printed = capsys.readouterr().out
    assert printed.splitlines()[-2:] == [
        f"kept in {folder / 'toy.jsonl'}",
        f"Figure: {folder / 'toy.png'}",
    ]
    assert "Same training: over 2 steps" in printed
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    (environment,), rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    assert [row["run"] for row in rows] == list(digits.RUNS)
    assert all(isinstance(row["accuracy"], float) for row in rows)


@pytest.fixture
def seen(
    trainings: dict[str, digits.Training], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[digits.Settings]:
    """The settings that networks are trained with, which here are those of the fixture.

    Away from the repository.
    """
    found: list[digits.Settings] = []

    def train(
        name: str, stack: object, settings: digits.Settings, split: object
    ) -> digits.Training:
        found.append(settings)
        return trainings[name]

    monkeypatch.setattr(digits, "train", train)
    monkeypatch.chdir(tmp_path)
    return found


def test_alone_it_is_the_demo(
    seen: list[digits.Settings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[int] = []
    interleave = digits.timing.interleave

    def counted(functions: Any, effort: timing.Effort) -> dict[str, timing.Timing]:
        calls.append(effort.rounds)
        return interleave(functions, timing.Effort(1))

    monkeypatch.setattr(digits.timing, "interleave", counted)
    digits.main([])
    assert seen == [digits.Settings()] * 3
    assert calls == [digits.REPEATS]
    assert [path.name for path in tmp_path.iterdir()] == ["digits.png"]
    assert capsys.readouterr().out.splitlines()[-1] == "Figure: digits.png"


def test_a_quick_run_takes_fewer_steps_unless_they_are_given(seen: list[digits.Settings]) -> None:
    digits.main(["--quick", "--width", "5", "--learning-rate", "0.5", "--repeats", "1"])
    digits.main(["--quick", "--steps", "7", "--repeats", "1"])
    assert seen[0] == digits.Settings(steps=300, width=5, learning_rate=0.5)
    assert seen[3] == digits.Settings(steps=7)


def test_what_there_was_no_time_for_is_left_out(
    seen: list[digits.Settings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    digits.main(["--seconds", "-1"])
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(digits, "in_time", lambda items, seconds: list(items)[:2])
    digits.main(["--repeats", "1"])
    printed = capsys.readouterr().out
    assert digits.AUTO in printed
    assert digits.PARALLEL not in printed
    assert "Same training" not in printed


def test_the_device_is_measured_only_if_asked_for(
    seen: list[digits.Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(digits.command, "model", lambda options: calls.append(options.calibrate))
    digits.main(["--seconds", "-1"])
    assert calls == []
    digits.main(["--seconds", "-1", "--calibrate"])
    assert calls == [True]


def test_wrong_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        digits.main(["--depth", "0"])
    assert "argument --depth: 0 is not a number from 1 on" in capsys.readouterr().err
