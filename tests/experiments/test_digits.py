"""The demo, at a size that takes seconds: every way to run the layers is the same training."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import digits
from experiments.common import data, timing

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
def test_losses_and_gradients_agree_with_layer_by_layer(trainings: dict[str, digits.Training], name: str) -> None:
    baseline, run = trainings[digits.BASELINE], trainings[name]
    assert len(run.losses) == SETTINGS.steps
    np.testing.assert_allclose(run.losses, baseline.losses, rtol=1e-5)
    assert digits.gradient_difference(baseline.gradient, run.gradient) < 1e-5
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


@pytest.mark.parametrize(("seconds", "words"), [(0.5, "2.0x faster than"), (1.0, "as fast as"), (3.0, "3.0x slower than")])
def test_times_are_compared_in_plain_words(seconds: float, words: str) -> None:
    assert digits.compared(seconds, 1.0) == words


def test_what_it_shows(trainings: dict[str, digits.Training], tmp_path: Path) -> None:
    times = {name: timing.Timing((1e-3,)) for name in trainings}
    assert [row["run"] for row in digits.rows(trainings, times)] == list(digits.RUNS)
    assert digits.summary(SETTINGS, trainings, times).startswith("Same training: over 6 steps")
    digits.draw(tmp_path / "digits.png", trainings, times)
    assert (tmp_path / "digits.png").stat().st_size > 0


def test_the_command_runs_from_start_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figure.png"
    digits.main(["--depth", "3", "--width", "2", "--batch", "4", "--steps", "2", "--out", str(out)])
    assert out.exists()
    printed = capsys.readouterr().out
    assert all(name in printed for name in digits.RUNS)
    assert f"Figure: {out}" in printed
