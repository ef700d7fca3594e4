"""The helpers of the experiments: timing, tables, result files, data, plots."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.common import data, plots, results, timing
from experiments.common.table import table


def test_interleave_calls_in_turn_and_leaves_the_warmup_out() -> None:
    calls: list[str] = []
    functions = {name: lambda name=name: calls.append(name) for name in "ABC"}
    times = timing.interleave(functions, repeats=3, warmup=2)
    assert "".join(calls) == "ABC" * 5
    assert list(times) == ["A", "B", "C"]
    assert all(time.count == 3 for time in times.values())


def test_interleave_needs_a_repeat() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        timing.interleave({"A": lambda: None}, repeats=0)


def test_timing_is_read_off_the_seconds() -> None:
    time = timing.Timing((3.0, 1.0, 2.0, 10.0))
    assert (time.minimum, time.median, time.maximum, time.count) == (1.0, 2.5, 10.0, 4)


def test_build_compiles_and_says_what_it_cost() -> None:
    x = jnp.arange(3.0)
    build = timing.build(lambda x: (2.0 * x).sum(), x)
    assert build.call(x) == 6.0
    assert build.lower > 0
    assert build.compile > 0
    assert build.temporary_bytes is None or build.temporary_bytes >= 0


def test_table_aligns_numbers_right_and_text_left() -> None:
    rows = [{"run": "scan", "ms": 1.23456, "steps": 12}, {"run": "newton", "ms": np.float32(20)}]
    assert table(rows).splitlines() == [
        "run       ms  steps",
        "------  ----  -----",
        "scan    1.23     12",
        "newton    20",
    ]


def test_table_of_nothing_is_empty() -> None:
    assert table([]) == ""


def test_results_come_back_as_written(tmp_path: Path) -> None:
    rows = [
        {"length": 8, "seconds": np.float64(0.5)},
        {"length": np.int32(16), "seconds": jnp.array(1.5)},
    ]
    path = results.write("toy", rows, folder=tmp_path)
    environment, back = results.read(path)
    assert path == tmp_path / results.device() / "toy.jsonl"
    assert back == [{"length": 8, "seconds": 0.5}, {"length": 16, "seconds": 1.5}]
    wanted = {"device", "cores", "jax", "jaxlib", "numpy", "python", "commit", "time"}
    assert wanted <= environment.keys()


def crash() -> Iterator[dict[str, int]]:
    yield {"length": 1}
    raise RuntimeError("midway")


@pytest.mark.parametrize(
    ("rows", "error"),
    [(crash(), RuntimeError), ([{"fine": 1}, {"not data": object()}], TypeError)],
    ids=["measuring", "writing"],
)
def test_a_crash_leaves_the_last_results(
    tmp_path: Path, rows: object, error: type[Exception]
) -> None:
    path = results.write("toy", [{"length": 0}], folder=tmp_path)
    before = path.read_bytes()
    with pytest.raises(error):
        results.write("toy", rows, folder=tmp_path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_every_line_of_a_result_file_is_json(tmp_path: Path) -> None:
    path = results.write("toy", [{"length": 0}, {"length": 1}], folder=tmp_path)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3


def test_digits_are_split_scaled_and_always_the_same() -> None:
    split = data.digits()
    assert len(split.train_x) + len(split.test_x) == 1797
    assert split.train_x.dtype == split.test_x.dtype == np.float32
    assert split.train_y.dtype == split.test_y.dtype == np.int32
    assert set(split.test_y) == set(range(10))
    np.testing.assert_allclose(split.train_x.mean(axis=0), 0, atol=1e-6)
    assert set(np.round(split.train_x.std(axis=0), 4)) == {0.0, 1.0}
    np.testing.assert_array_equal(split.train_x, data.digits().train_x)


def test_a_figure_is_saved_when_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    with plots.figure(path, columns=2) as (left, right):
        left.plot([1, 2, 3])
        right.plot([3, 2, 1])
    assert path.read_bytes().startswith(b"\x89PNG")
