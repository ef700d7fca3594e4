"""The command lines: a run of cases, its progress and Ctrl-C, the list of all, the suite."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import __main__ as program
from experiments import suite
from experiments.bench import command, fresh, results
from experiments.bench.command import parser
from experiments.bench.plots import Figures, sheet
from experiments.bench.table import Row
from tests.experiments.conftest import interrupted

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is run here is no experiment."""
    monkeypatch.setattr(fresh, "digests", lambda name: {"auto": f"digest of {name}"})


def run(tmp_path: Path, *cases: Callable[[], Iterator[Row]], **options: Any) -> None:
    """Run cases as an experiment does."""

    def pictures(rows: list[Row]) -> Figures:
        return {topic: sheet("")[0] for topic in ("speedups", "times")}

    line = ["--keep", "toy", "--columns", "--out", str(tmp_path)]
    line += [part for name in options for part in (f"--{name}", str(options[name]))]
    tables = {"": {"L": "length", "ms": "time", "note": "what is wrong"}, "both": {"L": "length"}}
    summary = lambda rows: iter(["a word", [{"part": "both", "L": 9}]])  # noqa: E731
    parsed = parser("toy", None).parse_args(line)
    command.run(parsed, cases, tables, summary=summary, pictures=pictures, together=["both"])


def test_a_run_prints_tables_and_their_legend_and_leaves_rows_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = [{"L": 1, "ms": 2.5}, {"L": 2, "ms": 3.5}], [{"L": 3, "note": "slow"}]
    both = [{"part": "both", "L": 4}]
    run(tmp_path, lambda: iter(first), lambda: iter([*both, *second]), lambda: iter(both))
    folder = tmp_path / results.device() / f"jax-{results.version()}"
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        *("L   ms", "1  2.5", "2  3.5", "", "L = 3", "3: slow", ""),
        *("both: L = 4", "", "a word", "", "both: L = 9", ""),
        *("Columns", "  L   length", "  ms  time", ""),
        f"rows     {folder / 'toy.jsonl'}",
        *(f"picture  {folder / name}" for name in ("toy.png", "toy_times.png")),
    ]
    assert printed.err == ""
    (environment,), rows = results.read(folder / "toy.jsonl")
    assert (environment["complete"], rows) == (True, [*first, *both, *second, *both])
    assert environment["programs"] == {"auto": "digest of toy"}


def test_what_is_stopped_leaves_its_rows_and_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def case() -> Iterator[Row]:
        yield {"L": 1, "ms": 2.5}
        raise KeyboardInterrupt

    path = results.path_of("toy", tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, case, pytest.fail)
    assert ended.value.code == 130
    (environment,), rows = results.read(path)
    assert (environment["complete"], rows) == (False, [{"L": 1, "ms": 2.5}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["L = 1", " ms", "2.5"]
    assert lines[-1] == f"Stopped by Ctrl-C: 0 of 2 cases done, rows so far in {path}"

    run(tmp_path, pytest.fail, seconds=-1.0)
    stopped = f"Stopped after -1 s, as --seconds says: 0 of 1 cases done, rows so far in {path}"
    assert stopped in capsys.readouterr().out
    (first, _), rows = results.read(path)
    assert (first["complete"], rows) == (False, [{"L": 1, "ms": 2.5}])  # which nothing replaced

    run(tmp_path, lambda: iter([{"L": 2}]))
    assert results.read(path)[1] == [{"L": 2}]  # a run that is done replaces all


def test_each_version_of_jax_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("0.9", "0.10"):
        monkeypatch.setattr(results, "version", lambda version=version: version)
        run(tmp_path, lambda version=version: iter([{"L": len(version)}]))
    newest, older = results.folders(tmp_path)
    assert [newest.name, older.name] == ["jax-0.10", "jax-0.9"]
    assert results.read(newest / "toy.jsonl")[1] == [{"L": 4}]


ENDLESS = """
import runpy, sys
import jax
from experiments import calls
from experiments.bench.progress import PROGRESS

def measure(entry, calls, count):
    yield {"entry": entry, "program": "lax.scan", "second ms": 1.0}
    while True:
        PROGRESS.say("compiling")
        jax.jit(lambda x: x + 1.0)(1.0)  # is compiled each time

calls.measure, calls.entries = measure, lambda length, layers: dict.fromkeys("abcde", {})
runpy.run_module("experiments", run_name="__main__")
"""


def test_ctrl_c_on_a_real_run(tmp_path: Path) -> None:
    """SIGINT to a process, once it has written its first rows."""

    def written() -> list[Path]:
        return [path for path in tmp_path.glob("*/*/calls.jsonl") if results.read(path)[1]]

    code, out, err = interrupted([ENDLESS, "calls", "--out", str(tmp_path)], written)
    found = written()
    assert code == 130
    assert "Traceback" not in err
    assert list(found[0].parent.iterdir()) == found  # neither a temporary file nor a picture
    last = rf"Stopped by Ctrl-C: \d of 5 cases done, rows so far in {re.escape(str(found[0]))}"
    assert re.fullmatch(last, out.splitlines()[-1])


def test_alone_it_lists_every_experiment_with_its_question_and_its_duration() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    first = next(k for k, line in enumerate(lines) if line.split() == ["takes", "answers"])
    listed = {line.split()[0]: line for line in lines[first + 1 :] if line.startswith("  ")}
    assert list(listed) == sorted(program.registry())
    assert not {"bench", "models", "results", "__main__"} & listed.keys()
    for name in listed.keys() - {"report", "suite"}:
        assert re.fullmatch(rf"  {name} +\d+ (min|h) +.*\?", listed[name])
    assert done.stderr == ""


LINES = {
    "mlp": "pass",
    "resnet": "raise ValueError('too small')",
    "kernels": "import time; time.sleep(60)",
    "calls": "pass",
    "field": "import sys; sys.exit(130)",
    "recurrence": "pass",
}


def test_what_crashes_or_hangs_is_a_line_and_the_rest_runs_until_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(name: str, *_: Any) -> list[str]:
        return [sys.executable, "-S", "-c", LINES[name]]

    monkeypatch.setattr(suite, "command", fake)
    monkeypatch.setattr(suite, "WEIGHTS", dict.fromkeys(LINES, 1) | {"kernels": 0.01})
    with pytest.raises(KeyboardInterrupt):
        suite.main(["--budget", "40"])
    lines = capsys.readouterr().out.splitlines()
    ended = {line.split()[0]: " ".join(line.split()[2:]) for line in lines[-5:]}
    assert ended.pop("kernels").startswith("stopped after ")
    assert ended == {
        "experiment": "outcome",
        "mlp": "done",
        "resnet": "failed (1)",
        "calls": "done",
    }
    assert "-- field, 5 of 6" in lines


def test_every_experiment_is_in_the_suite() -> None:
    assert {"demo", "device", "report", "suite"} == program.registry().keys() - suite.WEIGHTS
    line = suite.command("mlp", float("inf"), False, None)
    assert line[1:] == ["-m", "experiments", "mlp", "--keep", "mlp"]
    line = suite.command("mlp", 100.0, True, Path("out"))
    assert line[-5:] == ["--quick", "--out", "out", "--seconds", "90"]
