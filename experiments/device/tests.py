"""Tests on the device: those of kernels, and of programs that are other ones on an accelerator."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.device import outcomes
from experiments.suite import ROOT

TESTS = (  # the most important first
    "tests/fused",
    "tests/test_accelerators.py",
    "tests/test_precision.py",
    "tests/linear",
    "tests/newton",
    "tests/adjoint",
)
QUICK = ("tests/test_accelerators.py",)
PER_WORKER, WORKERS = 4, 4  # cores of a worker, and most of them: they share one device
WORDS = 200  # characters of a reason


def rows(paths: Sequence[str], seconds: float) -> Iterator[Row]:
    """A row for each test that fails, and one for all, of which the rest has passed or is skipped.

    Tests that ``seconds`` do not suffice for are not run. A test during which the process ends has
    failed.
    """
    if importlib.util.find_spec("pytest") is None:
        yield {"test": "all", "outcome": "not run", "reason": "pytest is not installed"}
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.jsonl"
        file.touch()
        PROGRESS.say("testing")
        ended = _run(paths, file, seconds)
        yield from summed([json.loads(line) for line in file.read_text().splitlines()], ended)


def _run(paths: Sequence[str], file: Path, seconds: float) -> str:
    """Run pytest for at most ``seconds``, and return how it ended: "done", or why not."""
    line = [sys.executable, "-m", "pytest", "-q", "-p", outcomes.__name__, *paths]
    workers = min(WORKERS, (os.cpu_count() or 1) // PER_WORKER)
    if workers > 1 and importlib.util.find_spec("xdist"):
        line += ["-n", str(workers)]
    environment = os.environ | {outcomes.FILE: str(file)}
    # Of its own group, so that its workers end with it.
    with subprocess.Popen(
        line, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return "done" if code in (0, 1) else f"ended with {code}"


def summed(lines: Sequence[Row], ended: str) -> Iterator[Row]:
    """The rows of tests, from the lines of `outcomes`, and how pytest ended."""
    last: dict[str, Row] = {}
    for line in lines:
        if line["outcome"] != "passed" or last[line["test"]]["outcome"] == "started":
            last[line["test"]] = line  # a teardown that fails is a failure, too
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for test, line in last.items():
        outcome, reason = line["outcome"], line.get("reason", "")
        if outcome == "started":
            if ended == "done" or ended.startswith("stopped"):
                continue  # it was running when time was over
            outcome, reason = "failed", f"pytest {ended} during this test"
        counts[outcome] += 1
        if outcome == "failed":
            yield {"test": test, "outcome": "failed", "reason": reason[:WORDS]}
    yield {"test": "all", **counts, "outcome": ended}
