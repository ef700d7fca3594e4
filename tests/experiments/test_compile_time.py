"""The experiments on compile time and training loops: every way computes the same, and rows and tables come out."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from depth.device import generic_cpu
from experiments import compile_time, training_loop
from experiments.common import builds, options, results
from experiments.common.builds import Way, compare

DEVICE = generic_cpu(2)


@pytest.fixture(autouse=True)
def as_users_have_it():
    """float32, and the usual promotion: what the experiments are run with."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options.depth, "calibrate", lambda refresh: DEVICE)


def ways() -> dict[str, Way]:
    """Toys: a loop of 8 sines by scan and by hand, a shallow one that is wrong, and one of 4 sines."""

    def scan(x):
        return jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=8)[0]

    def by_hand(x):
        for _ in range(8):
            x = jnp.sin(x)
        return x

    def arguments() -> tuple[Any, ...]:
        return (jnp.linspace(0.1, 1.0, 4),)

    return {
        "loop": Way(arguments, lambda: by_hand, baseline=True),
        "scan": Way(arguments, lambda: scan, baseline=True),
        "pair": Way(
            arguments, lambda: lambda x: (by_hand(x), 0), comparable=lambda result: result[0]
        ),
        "wrong": Way(arguments, lambda: lambda x: jnp.sin(jnp.sin(x))),
    }


def test_a_row_says_what_compiling_took_and_what_came_of_it() -> None:
    rows = {row["way"]: row for row in compare(ways(), "scan", DEVICE, builds=2, repeats=3)}
    loop, scan, pair = rows["loop"], rows["scan"], rows["pair"]
    for row in rows.values():
        assert row["total"] == pytest.approx(row["trace"] + row["compile"])
        assert row["min ms"] <= row["ms"] <= row["max ms"]
        assert row["repeats"] == 3
        assert row["log2"] == pytest.approx(math.log2(row["predicted ms"] / row["ms"]))
        assert row["predicted speedup"] == pytest.approx(
            min(loop["predicted ms"], scan["predicted ms"]) / row["predicted ms"]
        )
        assert row["temp MB"] >= 0
    assert (scan["depth"], rows["wrong"]["depth"], rows["wrong"]["depth speedup"]) == (8, 2, 4)
    assert pair["speedup"] == pytest.approx(min(loop["ms"], scan["ms"]) / pair["ms"])
    assert pair["over lax.scan"] == pytest.approx(scan["ms"] / pair["ms"])
    assert pair["error"] < 1e-6
    assert rows["wrong"]["note"].startswith("wrong: differs from scan by ")
    assert not {"speedup", "over lax.scan"} & rows["wrong"].keys()


def test_the_least_of_several_builds_counts_and_each_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([5.0, 3.0, 4.0])
    made: list[int] = []

    def program():
        made.append(len(made))
        return jnp.sin

    def slow(function, *arguments):
        return builds.Build(function, next(seconds), 1.0, None)

    monkeypatch.setattr(builds, "build", slow)
    (row,) = compare(
        {"scan": Way(lambda: (jnp.ones(2),), program, baseline=True)},
        "scan",
        DEVICE,
        builds=3,
        repeats=1,
    )
    assert (row["trace"], row["compile"], row["total"]) == (3.0, 1.0, 4.0)
    assert "temp MB" not in row
    assert len(made) == 1 + 3  # one is read for its depth


def test_all_ways_to_compile_compute_the_same() -> None:
    x = jnp.linspace(-1, 1, compile_time.BATCH * compile_time.WIDTH).reshape(
        compile_time.BATCH, compile_time.WIDTH
    )
    values = [jax.jit(run)(make(3), x) for make, run in compile_time.WAYS.values()]
    assert all(jnp.allclose(value, values[0], atol=1e-5) for value in values)


def test_compile_time_keeps_rows_and_draws(capsys, tmp_path: Path) -> None:
    sizes = ["--lengths", "2", "1", "--longest-loop", "1", "--builds", "1", "--repeats", "1"]
    compile_time.main([*sizes, "--keep", "toy", "--out", str(tmp_path)])
    folder = tmp_path / results.device()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"kept in {folder / 'toy.jsonl'}",
        f"drawn in {folder / 'toy.png'}",
    ]
    assert (folder / "toy.png").stat().st_size > 1000
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    loops = {name for name in compile_time.WAYS if "unroll" in name}
    assert {row["way"] for row in rows if row["L"] == 1} == set(compile_time.WAYS) - loops
    assert {row["way"] for row in rows if row["L"] == 2} == set(compile_time.WAYS) - loops - {
        "Python loop"
    }
    assert not [row for row in rows if "note" in row]
    first = {row["way"]: row["total"] for row in rows if row["L"] == 1}
    for row in rows:
        assert row["error"] < 1e-5
        assert row["against shortest"] == pytest.approx(row["total"] / first[row["way"]])
        assert min(row["depth"], row["predicted ms"], row["speedup"], row["predicted speedup"]) > 0
    assert {row["depth speedup"] for row in rows if row["way"] == compile_time.PLAIN} == {1}


def test_unrolled_loops_are_only_those_of_longer_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(compile_time, "compare", lambda ways, *_: (seen.append(list(ways)), [])[1])
    for length in (4, 16, 257):
        list(compile_time.measure(length, 256, DEVICE, 1, 1))
    assert [[name[-2:].strip() for name in names if "unroll" in name] for names in seen] == [
        [],
        ["4"],
        ["4", "16"],
    ]
    assert ["Python loop" in names for names in seen] == [True, True, False]


def test_without_flax_there_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(compile_time, "find_package", lambda name: None)
    compile_time.main(["--quick"])
    assert capsys.readouterr().out == "no compile times: flax is not installed\n"


def test_all_training_loops_train_the_same(capsys, tmp_path: Path) -> None:
    sizes = ["--modules", "3", "--steps", "4", "--builds", "1", "--repeats", "1"]
    training_loop.main([*sizes, "--keep", "toy", "--out", str(tmp_path)])
    folder = tmp_path / results.device()
    assert capsys.readouterr().out.splitlines()[-1] == f"drawn in {folder / 'toy.png'}"
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    assert [row["way"] for row in rows] == list(training_loop.WAYS)
    assert not [row for row in rows if "note" in row]
    for row in rows:
        assert row["error"] < 1e-3
        assert row["us a step"] == pytest.approx(1e3 * row["ms"] / 4)
        assert row["seconds"] == pytest.approx(row["trace"] + row["compile"])
        assert row["against list"] == pytest.approx(rows[0]["seconds"] / row["seconds"])
        assert min(row["depth speedup"], row["predicted speedup"], row["speedup"]) > 0
    assert rows[1]["over lax.scan"] == 1
    losses = [row["last loss"] for row in rows]
    assert 0 < max(losses) < 1.001 * min(losses)
