"""All of the above, one after another, within a time budget if one is given.

Each has a process of its own, so that it has the device for itself, and a share of the seconds that
are left. One that takes too long, crashes or lacks a package is a line in the table at the end, and
the rows that it has written stay. Rows and pictures are kept.
"""

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bench import results
from experiments.bench.command import positive
from experiments.bench.progress import INTERRUPTED, PROGRESS, interrupts
from experiments.bench.table import Row, legend, show

TAKES = "1 h"
GRACE = 10.0  # seconds to end experiments that do not end by themselves
FINISHING = 20.0  # seconds to finish the last case
QUICK = 20.0  # seconds; with less, not even a quick run starts
ROOT = Path(__file__).parent.parent
COLUMNS = {
    "experiment": "its name",
    "seconds": "how long it ran",
    "rows": "number of rows that it has written",
    "files": "files that it has written",
    "outcome": "done, or how it ended",
}


@dataclass(frozen=True)
class Entry:
    """An experiment of the suite.

    Attributes:
        name: of the experiment, and of its result file.
        weight: of its share of the remaining seconds.
        least: seconds; with less it does not start.
    """

    name: str
    weight: float = 1.0
    least: float = 60.0

    def command(self, seconds: float, quick: bool, out: Path | None) -> list[str]:
        """The command line that runs it for ``seconds``."""
        command = [sys.executable, "-m", "experiments", self.name]
        command += ["--quick"] if quick else []
        command += ["--keep", self.name, *(["--out", str(out)] if out else [])]
        if seconds == math.inf:
            return command
        # It finishes the case it is at, and then draws the picture.
        rest = max(FINISHING, 0.1 * seconds)
        return [*command, "--seconds", f"{max(1.0, seconds - rest):.0f}"]


ENTRIES = (
    Entry("mlp", weight=4),
    Entry("resnet", weight=3),
    Entry("diffusion", weight=3),
    Entry("gradients", weight=5),
    Entry("decide", weight=3, least=120),
    Entry("iterations", weight=2, least=120),
    Entry("field", weight=2, least=120),
    Entry("sharding"),
    Entry("kernels"),
    Entry("recurrence"),
    Entry("prediction", weight=2),
    Entry("calls"),
    Entry("compile_time", weight=2),
)


@dataclass(frozen=True)
class Ending:
    """How an experiment ended."""

    name: str
    seconds: float
    outcome: str


def run(
    entries: Sequence[Entry], budget: float, quick: bool, logs: Path, out: Path | None = None
) -> Iterator[Ending]:
    """Run experiments until the budget is spent.

    Args:
        entries: in the order in which they run.
        budget: seconds for all of them; may be infinite.
        quick: whether to run their quick versions.
        logs: the folder of their output.
        out: the folder of their rows and pictures; None for the usual one.

    Yields:
        How each ended.
    """
    end = time.monotonic() + budget
    for number, entry in enumerate(entries):
        PROGRESS.case(number, entry.name)
        left = end - time.monotonic() - GRACE
        least = min(entry.least, QUICK) if quick else entry.least
        if left < least:
            why = f"{max(left, 0):.0f} s were left, it takes {least:.0f}"
            yield Ending(entry.name, 0.0, f"not started: {why}")
            continue
        weights = sum(other.weight for other in entries[number:])
        share = min(left, max(least, left * entry.weight / weights))
        start = time.monotonic()
        outcome = attempt(entry.command(share, quick, out), share, logs / f"{entry.name}.log")
        yield Ending(entry.name, time.monotonic() - start, outcome)


def attempt(command: Sequence[str], seconds: float, log: Path) -> str:
    """Run a command for at most ``seconds``, and return how it ended: "done", or why not."""
    with log.open("w") as file:
        # In a session of its own: the processes that it has started end with it.
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with interrupts():
                code = process.wait(None if seconds == math.inf else seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            _end(process)
    if code == 0:
        return "done"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    why = lines[-1] if lines else "it printed nothing"
    return f"failed ({code}): {why[:160]}"


def _end(process: "subprocess.Popen[Any]") -> None:
    """End a process and all that it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # as Ctrl-C: it prints its table to the log
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE / 2)
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def written(name: str, since: float, folder: Path) -> Row:
    """The files that an experiment has written since then."""
    there = [path for kind in ("jsonl", "png") for path in folder.glob(f"*/{name}.{kind}")]
    files = [path for path in there if path.stat().st_mtime >= since]
    rows = sum(len(results.read(path)[1]) for path in files if path.suffix == ".jsonl")
    return {"rows": rows, "files": " ".join(sorted(path.name for path in files))}


def main(argv: list[str]) -> None:
    """Run experiments, print a line as each ends, and a table of all at the end."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = [entry.name for entry in ENTRIES]
    add("--quick", action="store_true", help="the quick version of each: a minute on two cores")
    add("--only", nargs="+", choices=names, metavar="NAME", help="these experiments (all)")
    add("--budget", type=positive, metavar="S", help="seconds for all of them (no limit)")
    add("--out", type=Path, metavar="DIR", help="write to DIR/<device> (experiments/results)")
    add("--logs", type=Path, metavar="DIR", help="write their output to DIR (a temporary folder)")
    options = parser.parse_args(argv)
    entries = [entry for entry in ENTRIES if not options.only or entry.name in options.only]
    logs = Path(options.logs or tempfile.mkdtemp(prefix="experiments-"))
    logs.mkdir(parents=True, exist_ok=True)
    out = options.out and options.out.absolute()
    since, budget = time.time(), float(options.budget or math.inf)
    rows: list[Row] = []
    stopped = False
    # SIGTERM as Ctrl-C: an exception, at which `attempt` ends the processes that it has started.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    PROGRESS.reset("starting", len(entries), unit="experiment", seconds=options.budget)
    try:
        for ending in run(entries, budget, options.quick, logs, out):
            PROGRESS.print(f"{ending.name}: {ending.outcome}")
            row = {"experiment": ending.name, "seconds": round(ending.seconds)}
            found = written(ending.name, since, out or results.FOLDER)
            rows.append(row | found | {"outcome": ending.outcome})
    except KeyboardInterrupt:
        stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)
    if rows:
        PROGRESS.print(f"\n{show(rows, COLUMNS)}\n\nColumns\n{legend(COLUMNS)}\n")
    PROGRESS.print(f"logs     {logs}")
    if stopped:
        where = out or results.FOLDER
        done = f"{len(rows)} of {len(entries)} experiments"
        PROGRESS.print(f"Stopped by Ctrl-C: {done}, rows and pictures in {where}")
        sys.exit(INTERRUPTED)
