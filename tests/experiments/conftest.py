"""A made-up device, and ways to run an experiment from its command line to its files or Ctrl-C."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

import depth
from depth.models import generic_cpu
from experiments.bench import command, programs, results
from experiments.bench.table import WIDTH

DEVICE = generic_cpu(2)
Run = Callable[..., tuple[list[dict[str, Any]], str]]


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A generic device, programs compiled once, and files out of the way."""
    monkeypatch.setattr(command, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(depth, "at_hand", lambda platform="cpu": DEVICE)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)


@pytest.fixture
def few_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loops only the plain one, for each is a program to compile."""
    monkeypatch.setattr(programs, "UNROLLS", ())


def interrupted(arguments: Sequence[str], begun: Callable[[], object]) -> tuple[int, str, str]:
    """Run Python with a program and its arguments, and send it SIGINT once it has ``begun``.

    Returns:
        its exit code, and what it has written to stdout and stderr.
    """
    with subprocess.Popen(
        [sys.executable, "-c", *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            end = time.monotonic() + 120
            while not begun():
                assert time.monotonic() < end
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, out, err


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

    It draws pictures, too, without their pixels. All columns of its tables are in the legend, and
    fit the terminal.
    """
    # Pictures are laid out and rendered in test_figures.py, which takes longer than to draw them.
    monkeypatch.setattr("matplotlib.layout_engine.do_constrained_layout", lambda *_, **__: None)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", drawn)

    def run(module: Any, *options: str) -> tuple[list[dict[str, Any]], str]:
        module.main([*options, "--keep", "toy", "--out", str(tmp_path)])
        text, folder = capsys.readouterr().out, tmp_path / results.device()
        folder /= f"jax-{results.version()}"
        drawn = sorted(map(str, folder.glob("*.png")))  # toy.png before toy_topic.png
        lines = text.splitlines()
        end = lines.index(f"rows     {folder / 'toy.jsonl'}")
        pictures = [line.removeprefix("picture  ") for line in lines[end + 1 :]]
        assert (sorted(pictures), pictures[:1]) == (drawn, drawn[:1])
        assert max(map(len, lines[:end])) <= WIDTH
        (environment,), rows = results.read(folder / "toy.jsonl")
        assert environment["complete"] is True
        return rows, text

    return run
