"""Iterations of every form: the command at a size that takes seconds, and what it is made of."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from deeppcr import Newton
from experiments import iterations
from experiments.common import models, results
from experiments.common.forms import Case, case, forms, longer

TINY = [("gru", 2, 12)]
COUNTS = {"dense": (1, 2), "diagonal": (), "scalar": (16,)}
FORMS = [("dense", Newton(linearize="dense")), ("window 256", "skipped: short"), ("zero", Newton(linearize="zero"))]
MEASURED = {"part", "chain", "w", "L", "form", "iterations", "ended", "error", "ms", "scan ms", "scan/form", "temp MB", "calls"}


def doubled(z: Array, at: dict[str, Array]) -> Array:
    return at["a"] * z + at["b"] * 3


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Small sizes, and a folder for what is written."""
    monkeypatch.setattr(iterations, "QUICK_CHAINS", TINY)
    monkeypatch.setattr(iterations, "QUICK_CURVES", TINY[:1])
    monkeypatch.setattr(iterations, "QUICK_COUNTS", COUNTS)
    monkeypatch.setattr(iterations, "QUICK_WIDTHS", [2])
    monkeypatch.setattr(iterations, "WIDE_LENGTH", 12)
    monkeypatch.setattr(iterations, "forms", lambda case: iter(FORMS))  # few of them, for each is a program to compile
    monkeypatch.setattr(iterations, "FOLDER", tmp_path)
    monkeypatch.setattr(iterations, "write", partial(results.write, folder=tmp_path))
    return tmp_path


def test_the_command_runs_from_start_to_end(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    iterations.main(["--quick", "--repeats", "1", "--keep", "toy"])
    folder = tiny / results.device()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"kept in {folder / 'toy.jsonl'}", f"drawn in {folder / 'toy.png'}"]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    _, rows = results.read(folder / "toy.jsonl")
    of = {part: [row for row in rows if row["part"] == part] for part in ("forms", "accuracy", "width", "damping")}
    assert sum(map(len, of.values())) == len(rows)

    assert [row["form"] for row in of["damping"]] == ["plain", "trust region"] * 2
    assert all(row["error"] < 1e-4 and row["forecast"] > 0 for row in of["damping"])

    skipped, *measured = of["forms"]
    assert skipped == {"part": "forms", "chain": "gru", "w": 2, "L": 12, "form": "window 256", "ended": "skipped: short"}
    assert [row["form"] for row in measured] == ["dense", "zero"]
    assert [row["form"] for row in of["width"]] == ["dense", "diagonal", "blocks 4"]
    for row in measured + of["width"]:
        assert set(row) == MEASURED
        assert row["ended"] == "converged"
        assert row["error"] < 1e-5
        assert 0 < row["iterations"] <= row["L"] + 1
        assert row["ms"] > 0

    dense = [row for row in of["accuracy"] if row["form"] == "dense"]
    assert [row["k"] for row in dense] == [0, 1, 2]
    assert dense[0]["error"] > dense[1]["error"] > dense[2]["error"]
    last = [row for row in of["accuracy"] if row["form"] == "scalar"][-1]
    assert last["ended"] == "converged"
    assert last["error"] < 1e-5


def test_parts_can_be_chosen(tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterations, "by_form", lambda chains, repeats: [{"part": "forms", "chain": len(chains), "w": repeats}])
    iterations.main(["--quick", "--parts", "forms", "--repeats", "3"])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["chain", "w"], ["-----", "-"], ["1", "3"], []]
    assert list(tiny.iterdir()) == []


def test_forms_fit_the_chain() -> None:
    gru, chaotic, lstm = (dict(forms(case(*chain))) for chain in [("gru", 8, 300), ("chaotic", 1, 300), ("lstm", 2, 12)])
    assert list(gru)[:6] == ["dense", "frozen 3", "window 256", "blocks 4", "diagonal", "4 probes"]
    assert not {"blocks 4", "diagonal", "4 probes"} & set(chaotic)
    assert {"blocks 2", "diagonal"} <= set(lstm)
    assert "window 256" not in lstm
    assert all(isinstance(form, Newton) for form in gru.values())


def test_what_is_too_large_is_skipped_with_a_reason() -> None:
    large = Case(
        "gru", models.Model(doubled, jax.ShapeDtypeStruct((10_000, 1), "float32"), jax.ShapeDtypeStruct((128,), "float32"))
    )
    found = dict(forms(large))
    assert found["dense"] == "skipped: Jacobians of 655 MB, more than 300"
    assert "frozen 3" not in found
    assert isinstance(found["window 256"], Newton)


def test_an_unknown_chain() -> None:
    with pytest.raises(ValueError, match="no chain is called 'ring'"):
        case("ring", 4, 10)


def test_a_long_step_is_several_where_the_noise_stays() -> None:
    at = {"a": jnp.array([1.5, 0.5, 2.0]), "b": jnp.array([1.0, -2.0, 0.25]), "t": jnp.arange(3.0)}
    z = jnp.array([1.0, -2.0])
    expected = z
    for index in range(3):
        expected = doubled(expected, {name: x[index] for name, x in at.items()})
    assert jnp.allclose(longer(models.Model(doubled, at, z))(z, at), expected)


def test_after_no_iteration_the_second_state_is_right() -> None:
    model = case("gru", 2, 6).model
    got, expected = iterations.guessed(model), iterations.sequential(model)(model.z0, model.inputs)
    assert got.shape == expected.shape
    assert jnp.allclose(got[:2], expected[:2], rtol=1e-6, atol=1e-6)
    assert not jnp.allclose(got[2:], expected[2:], rtol=1e-3)


def test_error_is_relative_to_the_largest_state() -> None:
    expected = (np.array([4.0, 0.0]), np.array([-8.0]))
    assert iterations.error((np.array([4.0, 1.0]), np.array([-8.0])), expected) == 1 / 8
    assert iterations.finite("error", iterations.error((np.array([4.0, np.inf]), np.array([-8.0])), expected)) == {}
    assert iterations.finite("error", 0.5) == {"error": 0.5}


def test_digits_that_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "residual_params", lambda blocks: {"decode": np.eye(3)})
    monkeypatch.setattr(iterations.data, "digits", lambda: SimpleNamespace(test_y=np.array([0, 2, 1, 1])))
    states = np.stack([np.zeros((4, 3)), np.eye(3)[[0, 2, 1, 0]]])
    assert iterations.right(100)(states) == {"digits right": 0.75}
