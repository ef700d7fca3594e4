"""The suite: order, budget, and experiments that crash, hang or lack a package."""

import argparse
import importlib
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments import suite
from experiments.bench import results

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fake(suite.Entry):
    """An experiment that is one line of Python."""

    program: str = ""

    def command(self, seconds: float, quick: bool) -> list[str]:
        return [sys.executable, "-S", "-c", self.program]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds are short here, and results go where they went before."""
    monkeypatch.setattr(suite, "GRACE", 0.2)
    monkeypatch.setattr(results, "FOLDER", results.FOLDER)
    monkeypatch.setenv(results.VARIABLE, "")


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
    assert found["hang"].startswith("ended after ")
    assert found["large"].startswith("not begun: ")
    assert (tmp_path / "crash.log").read_text().startswith("so far")


def test_without_a_budget_everything_runs_to_its_end(tmp_path: Path) -> None:
    entries = [Fake("large", least=1000, program="print('fine')")]
    (ending,) = suite.run(entries, math.inf, False, tmp_path)
    assert ending.outcome == "done"
    assert "--seconds" not in suite.Entry("mlp").command(math.inf, quick=False)
    assert "--keep" in suite.Entry("mlp").command(math.inf, quick=False)


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
    assert lines[0] == "toy: done"
    assert lines[-2].split()[2:] == ["2", "toy.jsonl", "done"]
    assert lines[-1] == f"what they printed is in {tmp_path / 'logs'}"
    assert tmp_path == results.FOLDER


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
    line = entry.command(100.0, quick=True)
    module = importlib.import_module(command.registry()[entry.name])
    with pytest.raises(KeyboardInterrupt):
        module.main(line[line.index(entry.name) + 1 :])
    given, unknown = seen
    assert not unknown
    assert given.keep == entry.name


def test_nothing_is_left_out_of_the_suite() -> None:
    others = {"digits", "report", "suite"}
    assert {entry.name for entry in suite.ENTRIES} == command.registry().keys() - others


def test_the_option_out_is_taken_from_any_experiment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[object] = []
    toy = type(
        "Toy",
        (),
        {"main": staticmethod(lambda argv: seen.append((argv, results.write("toy", [{"L": 1}]))))},
    )
    monkeypatch.setattr(command.importlib, "import_module", lambda _: toy)
    command.main(["mlp", "--quick", "--out", str(tmp_path)])
    assert seen == [(["--quick"], tmp_path / results.device() / "toy.jsonl")]
    line = [sys.executable, "-c", "from experiments.bench import results; print(results.FOLDER)"]
    started = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert started.stdout.strip() == str(tmp_path)  # an experiment may start others
