"""The suite: order, budget, and experiments that crash, hang or lack a package."""

import importlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments import suite
from experiments.common import options, results

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
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-S', '-c', {0!r}]); time.sleep(60)"
    deaf, late = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        tmp_path / "late",
    )
    entries = [
        Fake("right", least=0.1, weight=3, program="print('fine')"),
        Fake(
            "crash", least=0.1, weight=3, program="print('so far'); raise ValueError('too small')"
        ),
        Fake(
            "lacks",
            least=0.1,
            weight=3,
            program="import sys; sys.exit('lacks needs torch, which is not installed')",
        ),
        Fake(
            "hang",
            least=0.6,
            weight=0.01,
            program=child.format(f"{deaf}; time.sleep(2); open({str(late)!r}, 'w')"),
        ),
        Fake("large", least=1000, program="raise SystemExit"),
        Fake("last", least=0.1, program="print('also')"),
    ]
    start = time.monotonic()
    found = {ending.name: ending.outcome for ending in suite.run(entries, 30.0, False, tmp_path)}
    assert list(found) == [entry.name for entry in entries]
    assert found["right"] == found["last"] == "done"
    assert found["crash"] == "failed (1): ValueError: too small"
    assert found["lacks"] == "failed (1): lacks needs torch, which is not installed"
    assert found["hang"] == "ended after 1 s, with what it had"
    assert found["large"].startswith("not begun: ")
    assert time.monotonic() - start < 30
    assert (tmp_path / "crash.log").read_text().startswith("so far")
    time.sleep(max(0.0, start + 5 - time.monotonic()))
    assert not late.exists()  # what it had started ended with it


def test_the_budget_holds(tmp_path: Path) -> None:
    entries = [Fake(name, least=0.5, program="import time; time.sleep(60)") for name in "abcdef"]
    start = time.monotonic()
    outcomes = [ending.outcome for ending in suite.run(entries, 2.0, False, tmp_path)]
    assert time.monotonic() - start < 4
    assert outcomes[0].startswith("ended after")
    assert outcomes[-1].startswith("not begun")


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


class Stopped(Exception):
    """An experiment has read its options, and would begin."""


def stop(*_: object, **__: object) -> None:
    raise Stopped


@pytest.mark.parametrize("entry", suite.ENTRIES, ids=lambda entry: entry.name)
def test_every_experiment_is_there_and_takes_the_options_it_is_given(
    entry: suite.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert entry.name in command.registry()
    assert 'parser("' in (ROOT / "experiments" / f"{entry.name}.py").read_text(
        encoding="utf-8"
    )  # with options that all share
    line = entry.command(100.0, quick=True)
    module = importlib.import_module(command.registry()[entry.name])
    monkeypatch.setattr("argparse.ArgumentParser.error", lambda self, message: pytest.fail(message))
    monkeypatch.setattr(options, "in_time", stop)
    for name in ("model", "in_time", "record"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, stop)
    with pytest.raises(Stopped):
        module.main(
            [
                word
                for word in line[line.index(entry.name) + 1 :]
                if word not in ("--out", str(results.FOLDER))
            ]
        )


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
    line = [sys.executable, "-c", "from experiments.common import results; print(results.FOLDER)"]
    started = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert started.stdout.strip() == str(tmp_path)  # an experiment may start others


def test_what_is_stopped_midway_leaves_its_rows(tmp_path: Path) -> None:
    record = results.Record("toy", tmp_path)
    record.add({"L": 1}, {"L": 2})
    assert record.path is not None
    environment, rows = results.read(record.path)
    assert (environment["complete"], rows) == (False, [{"L": 1}, {"L": 2}])
    record.add({"L": 3})
    record.finish()
    environment, rows = results.read(record.path)
    assert (environment["complete"], len(rows)) == (True, 3)
    unkept = results.Record(None)
    unkept.add({"L": 1})
    assert (unkept.path, unkept.rows) == (None, [{"L": 1}])
