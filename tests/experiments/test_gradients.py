"""`python -m experiments gradients`: every adjoint gives the same gradient, and what is kept, printed and drawn of it."""

from pathlib import Path
from typing import Any

import jax
import pytest

import depth
from depth.device import generic_cpu
from experiments import gradients
from experiments.common import baselines, options, results
from experiments.common.versus import Program, Row
from experiments.gradients import Size

TINY = ["--lengths", "6", "--widths", "2", "--batches", "2", "--repeats", "1"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up calibration, and of the loops only the plain scan and the Python loop."""
    monkeypatch.setattr(options.depth, "calibrate", lambda refresh: generic_cpu(2))
    monkeypatch.setattr(baselines, "UNROLLS", ())


@pytest.mark.usefixtures("few")
def test_the_command_runs_from_start_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gradients.main([*TINY, "--keep", "toy", "--out", str(tmp_path)])
    folder = tmp_path / results.device()
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [
        f"kept in {folder / 'toy.jsonl'}",
        f"drawn in {folder / 'toy.png'}",
    ]
    assert [line.split(":")[0] for line in text.splitlines()[-4:-2]] == [
        "gradient, auto",
        "forward, auto",
    ]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    assert all((row["kind"], row["L"], row["w"], row["batch"]) == ("gru", 6, 2, 2) for row in rows)
    programs = {
        way: [row["program"] for row in rows if row["direction"] == way]
        for way in gradients.DIRECTIONS
    }
    loops = ["lax.scan", "unrolled"]
    assert programs["gradient"] == [
        *loops,
        "auto",
        "adjoint, sequential",
        "adjoint, recurrence",
        "adjoint, pcr",
    ]
    assert programs["forward"] == [*loops, "auto", "newton, recurrence"]
    assert not [row for row in rows if "note" in row]  # all of them compute what lax.scan computes
    for row in rows:
        assert (
            min(
                row[key]
                for key in (
                    "depth",
                    "predicted ms",
                    "speedup",
                    "depth speedup",
                    "predicted speedup",
                    "ms",
                )
            )
            > 0
        )
    assert {row["program"] for row in rows if "iterations" in row} == {"auto", "newton, recurrence"}


def test_the_adjoints_are_different_programs() -> None:
    case = gradients.case(Size(64, 2, 8), "gradient")
    depths = {}
    for name in ("adjoint, sequential", "adjoint, recurrence", "adjoint, pcr"):
        program = case.programs[name]
        assert isinstance(program, Program)
        depths[name] = depth.analyze(program.run, *case.arguments[0]).depth
    assert depths["adjoint, pcr"] < depths["adjoint, recurrence"] < depths["adjoint, sequential"]


def test_inputs_differ_from_call_to_call_and_from_example_to_example() -> None:
    (_, start, xs), (_, _, others) = gradients.case(Size(5, 3, 8), "forward").arguments
    assert start.shape == (8, 3)
    assert xs.shape == (5, 8, 3)
    assert (xs[:, 0] != xs[:, 1]).all()
    assert (xs != others).all()


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (["--quick"], [Size(2000, 4, 1), Size(2000, 4, 8)]),
        (
            ["--lengths", "7", "5", "--widths", "2", "--batches", "1"],
            [Size(7, 2, 1), Size(5, 2, 1)],
        ),
        (["--quick", "--batches", "3"], [Size(2000, 4, 3)]),
        ([], gradients.SIZES),
    ],
)
def test_what_is_measured(
    few: None,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    sizes: list[Size],
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(gradients, "case", lambda *case: case)
    monkeypatch.setattr(gradients, "race", lambda case, *_: seen.append(case) or [])
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    gradients.main([*given, "--directions", "forward", "gradient"])
    assert seen == [(size, direction) for size in sizes for direction in ("forward", "gradient")]


def test_the_summary_has_means_and_the_least() -> None:
    def row(direction: str, plain: float, strong: float, program: str = "auto") -> Row:
        return {
            "direction": direction,
            "program": program,
            "over lax.scan": plain,
            "speedup": strong,
        }

    rows = [
        row("gradient", 2, 1),
        row("gradient", 8, 4),
        row("forward", 3, 3),
        row("gradient", 99, 99, "adjoint, pcr"),
    ]
    assert gradients.summary(rows) == [
        "gradient, auto: 4.00x lax.scan (geometric mean), least 2.00x; 2.00x the fastest loop, least 1.00x",
        "forward, auto: 3.00x lax.scan (geometric mean), least 3.00x; 3.00x the fastest loop, least 3.00x",
    ]
    assert gradients.summary([]) == []


@pytest.mark.usefixtures("few")
def test_nothing_is_written_without_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    gradients.main(["--quick", "--seconds", "-1"])
    assert not list(tmp_path.iterdir())
    gradients.main(["--quick", "--seconds", "-1", "--plot", str(tmp_path / "empty.png")])
    assert [path.name for path in tmp_path.iterdir()] == ["empty.png"]


def test_wrong_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gradients.main(["--widths", "0"])
    assert "argument --widths: 0 is not a number from 1 on" in capsys.readouterr().err
