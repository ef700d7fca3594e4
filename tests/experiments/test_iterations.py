"""Iterations by form: the command at a size that takes seconds, chains, forms, errors."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from deeppcr import Newton
from experiments.bench import plots
from experiments.bench.programs import by_loop
from experiments.bench.summary import best, labels
from experiments.bench.timing import Effort
from experiments.iterations import accuracy
from experiments.iterations import figure as iterations_figure
from experiments.iterations import run as iterations
from experiments.iterations.forms import Problem, forms, longer, problem
from experiments.models import chains as models
from tests.experiments.conftest import DEVICE

TINY = [("tanh", 2, 12)]
COUNTS = {"dense": (1, 16, 20), "diagonal": (), "scalar": ()}  # 16 are enough
FORMS = [("dense", Newton(linearize="dense")), ("window 256", "skipped: short")]
WIDE = {"dense": "skipped: as above"}
MEASURED = {
    "predicted ms",
    "trace s",
    "compile s",
    "temp MB",
    "ms",
    "min ms",
    "max ms",
    "CPU ms",
    "repeats",
    "depth",
    "work",
    "log2",
    "error",
}
MEASURED |= {"speedup", "over lax.scan", "depth speedup", "predicted speedup"}


def doubled(z: Array, at: dict[str, Array]) -> Array:
    return at["a"] * z + at["b"] * 3


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes and few programs."""
    monkeypatch.setattr(iterations, "LOOP", 0)
    monkeypatch.setattr(iterations, "WIDE", WIDE)
    monkeypatch.setattr(iterations, "forms", lambda problem: iter(FORMS))  # each is compiled
    for name, value in {"CHAINS": TINY, "CURVES": TINY, "COUNTS": COUNTS, "WIDTHS": [2]}.items():
        monkeypatch.setattr(iterations, f"QUICK_{name}", value)
    monkeypatch.setattr(iterations, "QUICK_FORMS", None)
    monkeypatch.setattr(iterations, "WIDE_LENGTH", 12)
    monkeypatch.setattr(iterations, "sampling", lambda *_: models.logistic_chain(12, 3.2))


@pytest.mark.usefixtures("tiny")
def test_the_command_runs_from_start_to_end(run_command) -> None:
    rows, text = run_command(iterations, "--quick", "--repeats", "1")
    assert "forms: chain = tanh, w = 2, L = 12\n" in text
    of = {part: [row for row in rows if row["part"] == part] for part in iterations.PARTS}
    assert sum(map(len, of.values())) == len(rows)

    scan, *measured, skipped = of["forms"]
    here = {"part": "forms", "chain": "tanh", "w": 2, "L": 12}
    assert skipped == {**here, "program": "window 256", "baseline": False, "note": "skipped: short"}
    assert scan == scan | {**here, "program": "lax.scan", "baseline": True}
    assert [row["program"] for row in measured] == ["dense"]
    assert [row["program"] for row in of["width"]] == ["lax.scan", "dense"]
    for row in measured:
        assert set(row) >= MEASURED
        assert row["ended"] == "converged"
        assert row["error"] < 1e-5
        assert row["residual"] < 1e-3  # before the last iteration, which squares it
        assert 0 < row["iterations"] <= row["L"] + 1

    assert [row["program"] for row in of["damping"]] == ["lax.scan", "plain", "trust region"]
    assert all(row["error"] < 1e-4 and row["forecast"] > 0 for row in of["damping"])
    assert all({"growth rate", "forecast"} <= set(labels(row)) for row in of["damping"])
    assert [(row["part"], row["parallel"] in ("plain", "trust region")) for row in best(rows)] == [
        ("forms", False),
        ("damping", True),
    ]
    none, once, last, *others = of["accuracy"]
    assert {row["form"]: row["k"] for row in others} == {"diagonal": 0, "scalar": 0}
    assert [(row["form"], row["k"]) for row in (none, once)] == [("dense", 0), ("dense", 1)]
    assert none["error"] > once["error"] > last["error"]
    assert "residual" not in none
    assert once["residual"] > last["residual"] >= 0
    assert once["ended"] == "not yet"
    assert (last["form"], last["ended"]) == ("dense", "converged")
    assert 1 < last["k"] < 16
    assert last["error"] < 1e-5


def test_all_parts_have_their_share() -> None:
    bench = iterations.Bench(DEVICE, Effort(1))
    found = iterations.jobs(bench, quick=False, everything=False)
    assert tuple(found) == iterations.PARTS
    assert [len(jobs) for jobs in found.values()] == [10, 6, 7, 9]


@pytest.mark.usefixtures("tiny", "few_loops")
def test_the_forms_that_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [*FORMS, ("zero", Newton(linearize="zero"))]
    monkeypatch.setattr(iterations, "forms", lambda problem: iter(every))
    monkeypatch.setattr(  # nothing is compiled
        iterations,
        "bench",
        lambda case, *_: ({"program": name} for name in [*case.baselines, *case.variants]),
    )
    bench = iterations.Bench(DEVICE, Effort(1), few=("zero", "window 256"))
    rows = list(bench.forms(("gru", 2, 12)))
    assert [row["program"] for row in rows] == ["lax.scan", "zero", "window 256"]


def test_a_figure_of_what_was_not_run(tmp_path: Path) -> None:
    here = {"part": "forms", "chain": "gru", "w": 2, "L": 12, "baseline": False}
    rows = [
        here | {"program": "dense", "note": "not run"},
        here | {"program": "zero", "iterations": 3, "ended": "converged"},
    ]
    others = [here | {"part": "width", "program": "dense"}]
    plots.save(tmp_path / "toy.png", iterations_figure.pictures([*rows, *others]))
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")


def test_forms_fit_the_chain() -> None:
    gru, chaotic, lstm = (
        dict(forms(problem(*chain)))
        for chain in [("gru", 8, 300), ("chaotic", 1, 300), ("lstm", 2, 12)]
    )
    assert list(gru)[:5] == ["dense", "window 256", "blocks 4", "diagonal", "4 probes"]
    assert not {"blocks 4", "diagonal", "4 probes"} & set(chaotic)
    assert {"blocks 2", "diagonal"} <= set(lstm)
    assert "window 256" not in lstm
    assert all(isinstance(form, Newton) for form in gru.values())


def test_what_is_too_large_is_skipped_with_a_reason() -> None:
    large = Problem(
        "gru",
        models.Model(
            doubled,
            jax.ShapeDtypeStruct((10_000, 1), "float32"),
            jax.ShapeDtypeStruct((128,), "float32"),
        ),
    )
    found = dict(forms(large))
    assert found["dense"] == "skipped: Jacobians of 655 MB, more than 300"
    assert isinstance(found["window 256"], Newton)


def test_an_unknown_chain() -> None:
    with pytest.raises(ValueError, match="no chain is called 'ring'"):
        problem("ring", 4, 10)


def test_a_long_step_is_several_where_the_noise_stays() -> None:
    at = {"a": jnp.array([1.5, 0.5, 2.0]), "b": jnp.array([1.0, -2.0, 0.25]), "t": jnp.arange(3.0)}
    z = jnp.array([1.0, -2.0])
    expected = z
    for index in range(3):
        expected = doubled(expected, {name: x[index] for name, x in at.items()})
    assert jnp.allclose(longer(models.Model(doubled, at, z))(z, at), expected)


def test_after_no_iteration_the_second_state_is_right() -> None:
    model = problem("gru", 2, 6).model
    got, expected = (
        accuracy.guessed(model),
        by_loop(model.step, lax.scan)(model.z0, model.inputs),
    )
    assert got.shape == expected.shape
    assert jnp.allclose(got[:2], expected[:2], rtol=1e-6, atol=1e-6)
    assert not jnp.allclose(got[2:], expected[2:], rtol=1e-3)


def test_error_is_relative_to_the_largest_state() -> None:
    expected = (np.array([4.0, 0.0]), np.array([-8.0]))
    assert accuracy.error((np.array([4.0, 1.0]), np.array([-8.0])), expected) == 1 / 8
    assert (
        accuracy.finite(
            "error", accuracy.error((np.array([4.0, np.inf]), np.array([-8.0])), expected)
        )
        == {}
    )
    assert accuracy.finite("error", 0.5) == {"error": 0.5}


def test_digits_that_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "residual_params", lambda blocks: {"decode": np.eye(3)})
    monkeypatch.setattr(
        accuracy.data, "digits", lambda: SimpleNamespace(test_y=np.array([0, 2, 1, 1]))
    )
    states = np.stack([np.zeros((4, 3)), np.eye(3)[[0, 2, 1, 0]]])
    assert accuracy.right(100)(states) == {"digits right": 0.75}
