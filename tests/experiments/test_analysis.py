"""`python -m experiments analysis`: what is counted, kept and drawn."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from depth.jaxprs import without_constants
from experiments import analysis
from experiments.common import results


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    """float32, and the usual promotion."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def equations(program: analysis.Program) -> int:
    run, args = program
    return analysis.size(without_constants(jax.make_jaxpr(run)(*args)))


def test_a_program_inside_counts_once() -> None:
    assert equations(analysis.straight(30, 2)) == 30
    run, args = analysis.straight(30, 2)
    assert equations((jax.jit(run), args)) == 31
    assert equations(analysis.doublings(5)) == 2 * 5 + 1  # two calls a level, and one sine


def test_the_command_runs_from_start_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [("straight line", analysis.straight(30, 2)), ("5 doublings", analysis.doublings(5))]
    monkeypatch.setattr(analysis, "programs", lambda: iter(small))
    analysis.main(["--keep", "toy", "--out", str(tmp_path), "--repeats", "2"])
    folder = tmp_path / results.device()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"kept in {folder / 'toy.jsonl'}", f"drawn in {folder / 'toy.png'}"]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    assert [(row["program"], row["equations"], row["depth"]) for row in rows] == [
        ("straight line", 30, 30),
        ("5 doublings", 11, 32),
    ]
    assert all(
        min(row["trace s"], row["first s"], row["analyse s"]) > 0 and row["repeats"] == 2
        for row in rows
    )


def test_nothing_new_is_begun_when_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    analysis.main(["--seconds", "-1"])
    assert capsys.readouterr().out.strip() == "stopped after -1 s, as asked"
