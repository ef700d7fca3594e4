"""The demo, at a size that takes seconds: every program is the same training."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import digits
from experiments.bench import pictures, plots
from experiments.bench.table import Row

SETTINGS = digits.Settings(steps=6)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion() -> Iterator[None]:
    """Optax raises a float to the power of an int32 counter, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_batches_cover_each_epoch_once_and_are_the_same_for_every_run() -> None:
    settings = digits.Settings(batch=5, steps=4)
    chosen = digits.batches(settings, 10)
    assert sorted(chosen[:2].ravel()) == sorted(chosen[2:].ravel()) == list(range(10))
    np.testing.assert_array_equal(chosen, digits.batches(settings, 10))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "2.0x faster than"), (1.0, "as fast as"), (3.0, "3.0x slower than")],
)
def test_times_are_compared_in_plain_words(seconds: float, words: str) -> None:
    assert digits.compared(seconds, 1.0) == words


def rows(ms: dict[str, float], apart: float = 1e-6) -> list[Row]:
    return [
        *(
            {"part": "training", "program": name, "losses differ": apart, "iterations": 2.0}
            for name in digits.RUNS
        ),
        *({"part": "step", "program": name, "ms": each} for name, each in ms.items()),
    ]


def test_the_summary_is_of_all_runs() -> None:
    ms = {digits.BASELINE: 2.0, digits.AUTO: 1.0, digits.PARALLEL: 6.0}
    same, auto, parallel = digits.summary(SETTINGS, rows(ms))
    assert same == "Same training: over 6 steps the losses differ by at most 1.0e-06."
    assert "2.0x faster than layer by layer; it chose Newton iterations" in auto
    assert "in 2.0 iterations, a step is 3.0x slower than layer by layer" in parallel
    other, *_ = digits.summary(SETTINGS, rows(ms, apart=0.1))
    assert other.startswith("NOT the same training: ")
    assert len(list(digits.summary(SETTINGS, rows({})))) == 1
    assert not list(digits.summary(SETTINGS, []))


def test_the_command_runs_from_start_to_end(run_command) -> None:
    small = ["--depth", "12", "--width", "4", "--batch", "8", "--steps", "6", "--repeats", "3"]
    found, printed = run_command(digits, *small)
    assert "Same training: over 6 steps" in printed
    trained, timed = ([row for row in found if row["part"] == part] for part in digits.TABLES)
    assert (
        [row["program"] for row in trained] == [row["program"] for row in timed] == [*digits.RUNS]
    )
    baseline, _, parallel = trained
    for row in trained:
        assert len(row["losses"]) == row["steps"] == 6
        assert row["losses differ"] < 1e-5
        np.testing.assert_allclose(row["losses"], baseline["losses"], rtol=1e-5)
        assert row["gradients differ"] < 1e-5
        assert row["accuracy"] == pytest.approx(baseline["accuracy"], abs=0.01)
    assert baseline["iterations"] == 0
    assert 1 <= parallel["iterations"] <= 12
    assert all(row["repeats"] == 3 and "note" not in row for row in timed)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[digits.Settings]:
    """The settings of networks, none of which is trained."""
    found: list[digits.Settings] = []

    class Trainings:
        def __init__(self, settings: digits.Settings, split: object) -> None:
            found.append(settings)

    monkeypatch.setattr(digits, "Trainings", Trainings)
    return found


def test_a_quick_run_takes_fewer_steps_unless_they_are_given(seen: list[digits.Settings]) -> None:
    digits.main(["--seconds", "-1"])
    digits.main(["--seconds", "-1", "--quick", "--width", "5", "--learning-rate", "0.5"])
    digits.main(["--seconds", "-1", "--quick", "--steps", "7"])
    quick = digits.Settings(steps=300, width=5, learning_rate=0.5)
    assert seen == [digits.Settings(), quick, digits.Settings(steps=7)]


def test_wrong_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        digits.main(["--depth", "0"])
    assert "argument --depth: expected an integer of at least 1, got 0" in capsys.readouterr().err


def test_the_picture_is_of_what_there_is(tmp_path: Path) -> None:
    losses = {"losses": [2.0, 1.0]}
    found = [row | losses for row in rows({digits.BASELINE: 1.0})]
    for name, some in {"all": found, "training": found[:1], "nothing": []}.items():
        plots.save(tmp_path / f"{name}.png", pictures.digits(some))
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
