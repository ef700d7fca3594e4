"""The experiment on compile time: every program computes the same, and rows and tables come out."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.bench import plots
from experiments.compile_time import run as compile_time
from experiments.compile_time import training

LOOPS = (training.PLAIN, training.LIST, "stack and adam packed")  # each is compiled


@pytest.fixture(autouse=True)
def as_users_have_it():
    """float32, and the usual promotion: what the experiments are run with."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def test_the_command_runs_from_start_to_end(run_command, monkeypatch) -> None:
    monkeypatch.setattr(training, "PROGRAMS", {name: training.PROGRAMS[name] for name in LOOPS})
    few = compile_time.PLAIN, compile_time.LOOP, list(compile_time.PROGRAMS)[-1]
    found = {name: compile_time.PROGRAMS[name] for name in few}
    monkeypatch.setattr(compile_time, "PROGRAMS", found)
    sizes = ("--lengths", "2", "1", "--longest-loop", "1", "--modules", "3", "--steps", "4")
    rows, _ = run_command(compile_time, *sizes, "--builds", "1", "--repeats", "1")
    assert not [row for row in rows if "note" in row]
    layers, loops = ([row for row in rows if row["part"] == part] for part in compile_time.PARTS)
    names = set(few)
    assert {row["program"] for row in layers if row["L"] == 1} == names
    assert {row["program"] for row in layers if row["L"] == 2} == names - {compile_time.LOOP}
    first = {row["program"]: row["seconds"] for row in layers if row["L"] == 1}
    for row in layers:
        assert row["error"] < 1e-5
        assert row["against shortest"] == pytest.approx(row["seconds"] / first[row["program"]])
        assert min(row["depth"], row["predicted ms"], row["speedup"], row["predicted speedup"]) > 0
    plain = [row for row in layers if row["program"] == compile_time.PLAIN]
    assert {row["depth speedup"] for row in plain} == {1}
    seconds = {row["program"]: row["seconds"] for row in loops}
    assert list(seconds) == list(LOOPS)
    for row in loops:
        assert row["error"] < 1e-3
        assert row["us a step"] == pytest.approx(1e3 * row["ms"] / 4)
        assert row["seconds"] == pytest.approx(row["trace s"] + row["compile s"])
        assert row["against list"] == pytest.approx(seconds[training.LIST] / row["seconds"])
        assert min(row["depth speedup"], row["predicted speedup"], row["speedup"]) > 0
    assert loops[0]["over lax.scan"] == 1
    losses = [row["last loss"] for row in loops]
    assert 0 < max(losses) < 1.001 * min(losses)


def test_all_programs_compute_the_same() -> None:
    shape = (compile_time.BATCH, compile_time.WIDTH)
    x = jnp.linspace(-1, 1, shape[0] * shape[1]).reshape(shape)
    values = [jax.jit(run)(make(3), x) for make, run in compile_time.PROGRAMS.values()]
    assert all(jnp.allclose(value, values[0], atol=1e-5) for value in values)


def test_unrolled_loops_are_only_those_of_longer_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_time, "variant", lambda name, length: name)
    seen = [list(compile_time.case(length, 256).baselines) for length in (4, 16, 257)]
    unrolls = [[name[-2:].strip() for name in names if "unroll" in name] for names in seen]
    assert unrolls == [[], ["4"], ["4", "16"]]
    assert ["Python loop" in names for names in seen] == [True, True, False]


def test_without_flax_there_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(compile_time, "find_package", lambda name: None)
    compile_time.main(["--quick", "--parts", "layers"])
    assert capsys.readouterr().out.startswith("no layers: flax is not installed\n")


def test_a_figure_of_nothing(tmp_path: Path) -> None:
    plots.save(tmp_path / "empty.png", compile_time.pictures([]))
    assert (tmp_path / "empty.png").exists()
