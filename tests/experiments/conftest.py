"""A made-up device, and a way to run an experiment from its command line to its files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from depth.device import generic_cpu
from experiments.bench import command, programs, results
from experiments.bench.table import WIDTH

DEVICE = generic_cpu(2)
Run = Callable[..., tuple[list[dict[str, Any]], str]]


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No measurement of this device, programs compiled once, and files out of the way."""
    monkeypatch.setattr(command, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(command.depth, "calibrate", lambda refresh: DEVICE)
    monkeypatch.setattr(command.depth, "at_hand", lambda platform="cpu": DEVICE)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)


@pytest.fixture
def few_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loops only the plain one, for each is a program to compile."""
    monkeypatch.setattr(programs, "UNROLLS", ())


def drawn(drawing: Any, path: Path) -> None:
    """In the place of `savefig`: all is drawn but no pixel."""
    from PIL import Image

    drawing.draw_without_rendering()
    Image.new("RGB", (1, 1)).save(path)


@pytest.fixture
def run_command(
    few_loops: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """``run_command(module, *options) -> (rows, text)``: rows and output of an experiment.

    It draws pictures, too, without their pixels. All columns of its tables are in the legend, and fit the
    terminal.
    """
    # Pictures are laid out and rendered in test_figures.py, which takes longer than to draw them.
    monkeypatch.setattr("matplotlib.layout_engine.do_constrained_layout", lambda *_, **__: None)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", drawn)

    def run(module: Any, *options: str) -> tuple[list[dict[str, Any]], str]:
        module.main([*options, "--keep", "toy", "--out", str(tmp_path)])
        text, folder = capsys.readouterr().out, tmp_path / results.device()
        pictures = [folder / "toy.png", *sorted(folder.glob("toy_*.png"))]
        ends = [f"rows     {folder / 'toy.jsonl'}", *(f"picture  {path}" for path in pictures)]
        lines = text.splitlines()
        shown, said = lines[: -len(ends)], lines[-len(ends) :]
        assert said[:2] == ends[:2]
        assert sorted(said) == sorted(ends)
        assert max(map(len, shown)) <= WIDTH
        for path in pictures:
            assert path.read_bytes().startswith(b"\x89PNG")
        (environment,), rows = results.read(folder / "toy.jsonl")
        assert environment["complete"] is True
        return rows, text

    return run
