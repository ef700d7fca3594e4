"""A run of an experiment: tables that fit, a legend, files, progress, and Ctrl-C."""

import io
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from experiments.decide import run as decide

from experiments import calls, digits
from experiments.bench import command, engine, progress, results
from experiments.bench.columns import BENCH, BEST
from experiments.bench.command import parser
from experiments.bench.engine import Case, bench
from experiments.bench.plots import Figures, sheet
from experiments.bench.progress import Progress
from experiments.bench.summary import cases as by_case
from experiments.bench.table import WIDTH, Columns, Row, layout, legend, show
from experiments.bench.timing import Effort
from experiments.compile_time import run as compile_time
from experiments.diffusion import run as diffusion
from experiments.field import run as field
from experiments.gradients import run as gradients
from experiments.iterations import run as iterations
from experiments.kernels import run as kernels
from experiments.prediction import run as prediction
from experiments.recurrence import run as recurrence
from experiments.resnet import run as resnet
from experiments.sharding import run as sharding
from tests.experiments.conftest import DEVICE, interrupted

TABLES: dict[str, dict[str, Columns]] = {
    "calls": {"": calls.COLUMNS},
    "compile_time": {"layers": compile_time.LAYERS, "training": compile_time.TRAINING},
    "decide": decide.TABLES,
    "diffusion": diffusion.TABLES,
    "digits": digits.TABLES,
    "field": field.TABLES,
    "gradients": gradients.TABLES,
    "iterations": iterations.TABLES,
    "kernels": dict.fromkeys(("", "grid", "times", "speed"), kernels.COLUMNS),
    "mlp": {"": BENCH, "fastest programs": BEST},
    "prediction": {"times": prediction.TIMES, "analysis": prediction.ANALYSIS},
    "recurrence": {"": BENCH, "solvers": recurrence.SOLVER_COLUMNS},
    "resnet": resnet.TABLES,
    "sharding": sharding.TABLES,
}
STORED = sorted(path.stem for path in (results.FOLDER / "cpu").glob("*.jsonl"))


def run(tmp_path: Path, *cases: Callable[[], Iterator[Row]], **options: Any) -> list[list[Row]]:
    """Run cases as an experiment does; what is drawn."""
    drawn: list[list[Row]] = []

    def pictures(rows: list[Row]) -> Figures:
        drawn.append(rows)
        return {topic: sheet("")[0] for topic in ("speedups", "times")}

    given = [part for name in options for part in (f"--{name}", str(options[name]))]
    line = ["--keep", "toy", "--out", str(tmp_path), *given]
    tables = {"": {"L": "length", "ms": "time", "note": "what is wrong"}}
    command.run(parser("toy", None).parse_args(line), cases, tables, pictures=pictures)
    return drawn


def test_a_run_prints_tables_and_their_legend_and_leaves_rows_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = [{"L": 1, "ms": 2.5}, {"L": 2, "ms": 3.5}], [{"L": 3, "note": "slow"}]
    assert run(tmp_path, lambda: iter(first), lambda: iter(second)) == [first + second]
    folder = tmp_path / results.device()
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        *("L   ms", "1  2.5", "2  3.5", ""),
        *("L = 3", "3: slow", ""),
        *("Columns", "  L   length", "  ms  time", ""),
        f"rows     {folder / 'toy.jsonl'}",
        f"picture  {folder / 'toy.png'}",
        f"picture  {folder / 'toy_times.png'}",
    ]
    assert printed.err == ""
    assert (folder / "toy.png").exists()


def test_a_run_that_is_not_kept_leaves_its_files_in_the_scratch_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "SCRATCH", tmp_path / "scratch")
    options = parser("toy", None).parse_args([])
    command.run(options, [lambda: iter([{"L": 1}])], {}, pictures=lambda rows: {})
    names = {path.name for path in (tmp_path / "scratch").iterdir()}
    assert names == {"toy.jsonl", "toy.png"}


def test_no_case_begins_when_the_time_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, pytest.fail, seconds=-1.0)
    printed = capsys.readouterr().out
    path = tmp_path / results.device() / "toy.jsonl"
    assert (
        f"Stopped after -1 s, as --seconds says: 0 of 1 cases done, rows so far in {path}"
        in printed
    )
    assert "no picture: there are no rows to draw" in printed
    (environment,), _ = results.read(path)
    assert environment["complete"] is False


def test_parts_may_share_a_table_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parser("toy", None).parse_args(["--out", str(tmp_path)])
    cases = [lambda k=k: iter([{"part": "both", "L": k}]) for k in (1, 2)]
    command.run(
        options,
        cases,
        {"both": {"L": "length"}, "mean": {"ms": "time"}},
        summary=lambda rows: iter([f"{len(rows)} rows", [{"part": "mean", "ms": 1.5}]]),
        pictures=lambda rows: {},
        together=["both"],
        printed=lambda row: row | ({"L": 10 * row["L"]} if "L" in row else {}),
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[:6] == ["both", " L", "10", "20", "2 rows", "mean"]


def test_ctrl_c_leaves_the_rows_so_far_and_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def case() -> Iterator[Row]:
        yield {"L": 1, "ms": 2.5}
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run(tmp_path, case, pytest.fail)
    assert ended.value.code == 130
    path = tmp_path / results.device() / "toy.jsonl"
    (environment,), rows = results.read(path)
    assert (environment["complete"], rows) == (False, [{"L": 1, "ms": 2.5}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["L = 1", " ms", "2.5"]
    assert lines[-1] == f"Stopped by Ctrl-C: 0 of 2 cases done, rows so far in {path}"


ENDLESS = """
import runpy, sys
import jax
from experiments import calls

def measure(entry, calls, count):
    yield {"entry": entry, "program": "lax.scan", "second ms": 1.0}
    while True:
        jax.jit(lambda x: x + 1.0)(1.0)  # is compiled each time

calls.measure, calls.entries = measure, lambda length, layers: dict.fromkeys("abcde", {})
runpy.run_module("experiments", run_name="__main__")
"""


def test_ctrl_c_on_a_real_run(tmp_path: Path) -> None:
    """SIGINT to a process, once it has written its first rows."""

    def written() -> list[Path]:
        return [path for path in tmp_path.glob("*/calls.jsonl") if results.read(path)[1]]

    code, out, err = interrupted([ENDLESS, "calls", "--out", str(tmp_path)], written)
    found = written()
    assert code == 130
    assert "Traceback" not in err
    (environment,), rows = results.read(found[0])
    assert environment["complete"] is False
    assert list(found[0].parent.iterdir()) == found  # neither a temporary file nor a picture
    assert all(row["program"] in out for row in rows)
    assert "Columns" in out
    last = rf"Stopped by Ctrl-C: \d of 5 cases done, rows so far in {re.escape(str(found[0]))}"
    assert re.fullmatch(last, out.splitlines()[-1])


def test_a_swallowed_ctrl_c_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python swallows exceptions in callbacks and destructors."""

    class Callback:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress, "AGAIN", 0.1)
    with progress.interrupts():
        Callback()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)
    time.sleep(0.2)  # not once more


# -- progress


class Stream(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of progress, as a list of one number."""
    found = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: found[0])
    return found


def test_progress_has_case_count_and_time_left(now: list[float]) -> None:
    shown = Progress()
    assert shown.line() == "importing jax"
    shown.reset("preparing", 8)
    shown.case(2)
    now[0] = 45.0
    shown.say("compiling newton / blocks", 0.25)
    assert shown.line() == "case 3 of 8, compiling newton / blocks, 1:55 left"
    assert list(shown.steps("training", "ab", 2)) == ["a", "b"]
    assert shown.line() == "case 3 of 8, training, step 2 of 2, 1:39 left"
    shown.reset("preparing", 8, unit="experiment", seconds=60.0)
    assert shown.line() == "experiment 1 of 8, preparing, 1:00 left"
    shown.reset("measuring this device")
    assert shown.line() == "measuring this device"
    assert [progress.clock(seconds) for seconds in (5, 130, 3700)] == ["0:05", "2:10", "1:01:40"]


@pytest.mark.parametrize(
    ("is_terminal", "expected"),
    [
        (True, f"{progress.ERASE}case 1 of 2, timing{progress.ERASE}"),
        (False, "case 1 of 2, timing\n"),
    ],
)
def test_a_terminal_has_one_line_and_a_log_has_many(
    is_terminal: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = Stream(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "PATIENCE", 3600.0)
    shown = Progress()
    with shown.shown():
        shown.reset("preparing", 2)
        shown.say("timing")
        shown._write()
        shown.print("a table")
        shown.print("another")
    assert stream.getvalue() == expected
    assert capsys.readouterr().out == "a table\nanother\n"


def test_the_first_seconds_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, written = Stream(False), threading.Event()
    monkeypatch.setattr(sys, "stderr", stream)
    shown = Progress()
    with shown.shown():
        shown.say("timing")
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(shown, "_write", written.set)
    with shown.shown():
        assert written.wait(60)


def test_the_engine_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, float | None]] = []
    monkeypatch.setattr(engine.PROGRESS, "say", lambda doing, done=None: said.append((doing, done)))
    case = Case({}, [(jnp.ones(2),)], {"lax.scan": jnp.sin}, {"other": lambda x: jnp.sin(x)})
    list(bench(case, DEVICE, Effort(1)))
    assert said == [
        *(("predicting lax.scan", 0.0), ("predicting other", 1 / 6)),
        *(("compiling lax.scan", 2 / 6), ("compiling other", 3 / 6)),
        *(("checking lax.scan", None), ("checking other", None)),
        *(("timing lax.scan, round 1 of 1", None), ("timing other, round 1 of 1", None)),
    ]


# -- tables


def test_a_table_fits_the_terminal() -> None:
    columns = {f"column {k}": "a number" for k in range(40)}
    rows: list[Row] = [dict.fromkeys(columns, 123456.0) | {"note": 50 * "word "} for _ in "ab"]
    text, names = layout(rows, columns)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert names == list(columns)[: len(names)]
    assert 5 < len(names) < 40
    assert show([], columns) == ""


def test_what_all_rows_share_stands_above_the_table_and_notes_below() -> None:
    rows = [{"L": 8, "program": "scan", "ms": 1.0}, {"L": 8, "program": "newton", "note": "wrong"}]
    text, names = layout(rows, {"L": "", "program": "", "compile s": "", "ms": ""}, "part")
    assert text.splitlines() == [
        *("part: L = 8", "program  ms", "scan      1", "newton"),
        "newton: wrong",
    ]
    assert names == ["L", "program", "ms"]


@pytest.mark.parametrize("name", STORED)
def test_the_tables_of_stored_rows_fit(name: str) -> None:
    """Tables of one case, and of all rows of a part."""
    _, rows = results.read(results.FOLDER / "cpu" / f"{name}.jsonl")
    if name == "sharding":
        rows = [sharding.printed(row) for row in rows]
    for part in dict.fromkeys(row.get("part", "") for row in rows):
        mine = [row for row in rows if row.get("part", "") == part]
        for group in (mine, *(of_case for _, of_case in by_case(mine))):
            text, names = layout(group, TABLES[name][part], part)
            assert max(map(len, text.splitlines())) <= WIDTH
            assert len(names) >= 5


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_one_meaning_and_a_line_of_legend(name: str) -> None:
    found: dict[str, set[str]] = {}
    for columns in TABLES[name].values():
        for column, text in columns.items():
            found.setdefault(column, set()).add(text)
            assert text
        assert max(map(len, legend(columns).splitlines())) <= WIDTH
        assert len(legend(columns).splitlines()) == len(columns)
    assert [column for column, texts in found.items() if len(texts) > 1] == []
