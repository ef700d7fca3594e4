"""The suite: order, budget, and experiments that crash, hang or lack a package."""

import argparse
import importlib
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments import suite
from tests.experiments.conftest import interrupted


@dataclass(frozen=True)
class Fake(suite.Entry):
    """An experiment that is one line of Python."""

    program: str = ""

    def command(self, seconds: float, quick: bool, out: Path | None) -> list[str]:
        return [sys.executable, "-S", "-c", self.program]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds are short here."""
    monkeypatch.setattr(suite, "GRACE", 0.2)


def test_what_crashes_hangs_or_lacks_a_package_is_a_line_and_the_rest_runs(tmp_path: Path) -> None:
    lacks = "import sys; sys.exit('lacks needs torch, which is not installed')"
    crash = "print('so far'); raise ValueError('too small')"
    entries = [
        Fake("right", least=0.1, weight=3, program="print('fine')"),
        Fake("crash", least=0.1, weight=3, program=crash),
        Fake("lacks", least=0.1, weight=3, program=lacks),
        Fake("hang", least=0.3, weight=0.01, program="import time; time.sleep(60)"),
        Fake("large", least=1000, program="raise SystemExit"),
        Fake("last", least=0.1, program="print('also')"),
    ]
    found = {ending.name: ending.outcome for ending in suite.run(entries, 30.0, False, tmp_path)}
    assert list(found) == [entry.name for entry in entries]
    assert found["right"] == found["last"] == "done"
    assert found["crash"] == "failed (1): ValueError: too small"
    assert found["lacks"] == "failed (1): lacks needs torch, which is not installed"
    assert found["hang"].startswith("stopped after ")
    assert found["large"].startswith("not started: ")
    assert (tmp_path / "crash.log").read_text().startswith("so far")


def test_without_a_budget_everything_runs_to_its_end(tmp_path: Path) -> None:
    entries = [Fake("large", least=1000, program="print('fine')")]
    (ending,) = suite.run(entries, math.inf, False, tmp_path)
    assert ending.outcome == "done"
    assert "--seconds" not in suite.Entry("mlp").command(math.inf, False, None)
    assert "--keep" in suite.Entry("mlp").command(math.inf, False, None)


def test_the_table_says_what_was_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cpu").mkdir()
    text = '{"environment": {}}\\n{"L": 1}\\n{"L": 2}\\n'
    program = f"open({str(tmp_path / 'cpu' / 'toy.jsonl')!r}, 'w').write('{text}')"
    monkeypatch.setattr(
        suite, "ENTRIES", (Fake("toy", least=1, program=program), Fake("other", least=1))
    )
    suite.main(
        [
            "--budget",
            "20",
            "--only",
            "toy",
            "--out",
            str(tmp_path),
            "--logs",
            str(tmp_path / "logs"),
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["toy: done", ""]
    assert lines[3].split()[2:] == ["2", "toy.jsonl", "done"]
    assert lines[5] == "Columns"
    assert lines[-1] == f"logs     {tmp_path / 'logs'}"


@pytest.mark.parametrize("entry", suite.ENTRIES, ids=lambda entry: entry.name)
def test_every_experiment_is_there_and_takes_the_options_it_is_given(
    entry: suite.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def parse(self: argparse.ArgumentParser, argv: list[str]) -> None:
        seen.extend(original(self, argv))
        raise KeyboardInterrupt  # it has read its options, and would begin

    original = argparse.ArgumentParser.parse_known_args
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    line = entry.command(100.0, True, None)
    module = importlib.import_module(command.registry()[entry.name])
    with pytest.raises(KeyboardInterrupt):
        module.main(line[line.index(entry.name) + 1 :])
    given, unknown = seen
    assert not unknown
    assert given.keep == entry.name


def test_nothing_is_left_out_of_the_suite() -> None:
    others = {"digits", "report", "suite"}
    assert {entry.name for entry in suite.ENTRIES} == command.registry().keys() - others


def test_ctrl_c_ends_the_experiment_prints_the_table_and_leaves_no_process(tmp_path: Path) -> None:
    """A real SIGINT to a real suite, whose second experiment runs on."""
    marker, pid = tmp_path / "started", tmp_path / "pid"
    endless = "import os, pathlib, time; "
    endless += f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); "
    endless += f"pathlib.Path({str(marker)!r}).touch(); time.sleep(60)"
    program = f"""
from dataclasses import dataclass
from experiments import suite
from experiments.bench.progress import PROGRESS

@dataclass(frozen=True)
class Fake(suite.Entry):
    program: str = ""
    def command(self, seconds, quick, out):
        return [suite.sys.executable, "-S", "-c", self.program]

suite.ENTRIES = (Fake("short", program="pass"), Fake("endless", program={endless!r}))
suite.main(["--logs", {str(tmp_path / "logs")!r}, "--out", {str(tmp_path)!r}])
"""
    code, out, err = interrupted([program], marker.exists)
    assert code == 130
    assert "Traceback" not in err
    assert "short: done" in out
    assert out.splitlines()[-1].startswith("Stopped by Ctrl-C: 1 of 2 experiments")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
