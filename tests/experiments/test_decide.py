"""What "auto" chooses against what is fastest: the command at a size that takes seconds, and the chains it is tried on."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depth
from experiments import decide
from experiments.common import results, zoo

SMALL = zoo.Specimen("gru", 2, 16, 1)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One small chain, a made-up calibration, and a folder for what is written."""
    model = depth.device.generic_cpu(2)
    monkeypatch.setattr(decide.depth, "calibrate", lambda refresh: model)
    monkeypatch.setattr(decide.zoo, "specimens", lambda number, seed: iter([SMALL]))
    monkeypatch.setattr(decide, "MAP_LENGTHS", (16,))
    monkeypatch.setattr(decide, "MAP_WIDTHS", (2,))
    monkeypatch.setattr(decide, "SECONDS", 0.0)
    monkeypatch.setattr(decide, "FOLDER", tmp_path)
    monkeypatch.setattr(decide, "write", partial(results.write, folder=tmp_path))
    return tmp_path


def test_the_command_runs_from_start_to_end(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decide.main(["--parts", "regret", "map", "--keep", "toy"])
    folder = tiny / results.device()
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [f"kept in {folder / 'toy.jsonl'}", f"drawn in {folder / 'toy.png'}"]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    _, rows = results.read(folder / "toy.jsonl")
    regret, cells = ([row for row in rows if row["part"] == part] for part in ("regret", "map"))
    assert [row["direction"] for row in regret] == [row["direction"] for row in cells] == ["forward", "gradient"]
    for row in regret:
        seconds = row["seconds"]
        assert row["fastest"] == min(seconds, key=seconds.get)
        assert row["regret %"] == pytest.approx(100 * (seconds[row["chosen"]] / seconds[row["fastest"]] - 1))
        assert row["speedup"] == pytest.approx(seconds["lax.scan"] / seconds[row["chosen"]])
        assert {"lax.scan", row["chosen"]} <= set(seconds)
        assert not set(seconds) & set(row["not run"])
    for row in cells:
        assert all(row[name] > 0 for name in ("realised", "predicted, here", "predicted, H200", "predicted, TPU v5e"))


def test_the_tables_say_what_was_measured() -> None:
    def row(chosen: str, fastest: str, regret: float) -> decide.Row:
        names = {"kind": "gru", "w": 2, "L": 16, "batch": 1, "direction": "forward", "chosen": chosen, "fastest": fastest}
        return {**names, "regret %": regret, "noise %": 1.0, "speedup": 2.0, "planning %": 3.0}

    text = decide.report_regret([row("sequential", "sequential", 0.0), row("sequential", "Newton, diagonal, pcr", 50.0)])
    total = next(line.split() for line in text.splitlines() if line.startswith("all"))
    assert total[:5] == ["all", "2", "25", "50", "50"]  # chains, median, 90th percentile, worst
    assert "sequential                          1           1" in text  # the confusion matrix


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_every_kind_of_chain_runs_and_has_the_size_it_says(kind: str) -> None:
    specimen = zoo.Specimen(kind, 4, 6, 3)
    task = zoo.task(specimen)
    states = task.forward(jax.lax.scan)(*task.arguments)
    assert states.size == 6 * 3 * 4
    assert states.dtype == jnp.float32
    slopes = jax.tree.leaves(task.gradient(jax.lax.scan)(*task.arguments))
    assert any(bool(jnp.any(leaf != 0)) for leaf in slopes)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in slopes)


def test_as_many_chains_of_each_kind_are_drawn_and_always_the_same() -> None:
    drawn = list(zoo.specimens(60))
    assert len(drawn) == len(set(drawn)) == 60
    assert {kind: sum(specimen.kind == kind for specimen in drawn) for kind in zoo.KINDS} == dict.fromkeys(zoo.KINDS, 10)
    assert drawn == list(zoo.specimens(60))
    assert drawn != list(zoo.specimens(60, seed=1))
    assert max(specimen.work for specimen in drawn) <= zoo.MOST_WORK
    assert {specimen.batch for specimen in drawn} == {1, 8, 64}


def test_the_hard_chains_amplify_differences() -> None:
    for name, step, init, inputs in decide.hard_chains():
        moved, _ = jax.lax.scan(lambda z, x, step=step: (step(z, x), None), init, inputs[:200])
        apart, _ = jax.lax.scan(lambda z, x, step=step: (step(z, x), None), init + 1e-5, inputs[:200])
        assert np.abs(np.asarray(moved - apart)).max() > 1e-2, name
