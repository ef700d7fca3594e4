"""All experiments, the most important first, each in a process of its own, with a budget if given.

Of a budget an experiment gets a share of the seconds that are left, and hears when to stop; one
that does not, or crashes, or lacks a package, is a line in the table at the end, and what it had
written until then stays. One runs after another, so that each has the device for itself. Rows and
figures are kept.
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
from experiments.bench.command import positive, progress
from experiments.bench.table import Row, show

GRACE = 10.0  # seconds that are kept back to end what does not end by itself
FINISHING = 20.0  # seconds that an experiment has to stop once it is time
QUICK = 20.0  # seconds: with less, not even a quick run is begun
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Entry:
    """An experiment of the suite.

    Attributes:
        name: of the experiment, and of its result file.
        weight: of its share of the seconds that are left.
        least: seconds; with less it is not begun.
    """

    name: str
    weight: float = 1.0
    least: float = 60.0

    def command(self, seconds: float, quick: bool) -> list[str]:
        """The command line that runs it for so many seconds."""
        command = [sys.executable, "-m", "experiments", self.name]
        command += ["--quick"] if quick else []
        command += ["--keep", self.name, "--out", str(results.FOLDER)]
        if seconds == math.inf:
            return command
        # A case that has begun is finished, and then the figure is drawn.
        rest = max(FINISHING, 0.1 * seconds)
        return [*command, "--seconds", f"{max(1.0, seconds - rest):.0f}"]


ENTRIES = (
    Entry("mlp", weight=4),
    Entry("resnet", weight=3),
    Entry("diffusion", weight=3),
    Entry("gradients", weight=5),
    Entry("decide", weight=3, least=120),
    Entry("iterations", weight=2, least=120),
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


def run(entries: Sequence[Entry], budget: float, quick: bool, logs: Path) -> Iterator[Ending]:
    """Run experiments until the budget is spent, or to their ends if it is infinite.

    Args:
        entries: in the order in which they are run.
        budget: seconds for all of them.
        quick: small sizes.
        logs: a folder for what they print.

    Yields:
        How each ended, as it does.
    """
    end = time.monotonic() + budget
    for number, entry in enumerate(entries):
        left = end - time.monotonic() - GRACE
        least = min(entry.least, QUICK) if quick else entry.least
        if left < least:
            why = f"{max(left, 0):.0f} s were left, it takes {least:.0f}"
            yield Ending(entry.name, 0.0, f"not begun: {why}")
            continue
        weights = sum(other.weight for other in entries[number:])
        share = min(left, max(least, left * entry.weight / weights))
        start = time.monotonic()
        outcome = attempt(entry.command(share, quick), share, logs / f"{entry.name}.log")
        yield Ending(entry.name, time.monotonic() - start, outcome)


def attempt(command: Sequence[str], seconds: float, log: Path) -> str:
    """Run a command for at most so many seconds, and say how it ended: "done", or why not."""
    with log.open("w") as file:
        # A session of its own: what it has started itself is ended with it.
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(None if seconds == math.inf else seconds)
        except subprocess.TimeoutExpired:
            return f"ended after {seconds:.0f} s, with what it had"
        finally:
            _end(process)
    if code == 0:
        return "done"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    why = lines[-1] if lines else "it printed nothing"
    return f"failed ({code}): {why[:160]}"


def _end(process: "subprocess.Popen[Any]") -> None:
    """End a process and all that it has started.

    Some processes of jax do not listen to the first signal.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE / 2)
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def written(name: str, since: float, folder: Path) -> Row:
    """What an experiment has left in its files since then."""
    there = [path for kind in ("jsonl", "png") for path in folder.glob(f"*/{name}.{kind}")]
    files = [path for path in there if path.stat().st_mtime >= since]
    rows = sum(len(results.read(path)[1]) for path in files if path.suffix == ".jsonl")
    return {"rows": rows, "files": " ".join(sorted(path.name for path in files))}


def main(argv: list[str]) -> None:
    """Run, print a line for each experiment as it ends, and a table of all at last."""
    parser = argparse.ArgumentParser(prog="python -m experiments suite", description=__doc__)
    add = parser.add_argument
    names = [entry.name for entry in ENTRIES]
    add("--budget", type=positive, metavar="SECONDS", help="for everything; without, no limit")
    add(
        "--out", type=Path, metavar="DIR", help="write to DIR/<device>, and not to results/<device>"
    )
    add("--logs", type=Path, metavar="DIR", help="for what they print; else a temporary folder")
    add("--only", nargs="+", choices=names, help="of all experiments these")
    add("--quick", action="store_true", help="small sizes: to see whether everything runs")
    options = parser.parse_args(argv)
    entries = [entry for entry in ENTRIES if not options.only or entry.name in options.only]
    if options.out:
        results.write_into(options.out)
    logs = Path(options.logs or tempfile.mkdtemp(prefix="experiments-"))
    logs.mkdir(parents=True, exist_ok=True)
    # Ended from outside, it ends what it has started: as an exception, which passes through
    # `attempt`.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("suite: ended from outside"))
    try:
        rows = list(_reported(entries, options, logs))
    finally:
        signal.signal(signal.SIGTERM, before)
    print("\n" + show(rows))
    print("what they printed is in", logs)


def _reported(entries: Sequence[Entry], options: argparse.Namespace, logs: Path) -> Iterator[Row]:
    """Run them; a line, and a row of the table, for each as it ends."""
    since, budget = time.time(), float(options.budget or math.inf)
    endings = run(entries, budget, options.quick, logs)
    for ending in progress(endings, "suite", len(entries)):
        print(f"{ending.name}: {ending.outcome}", flush=True)
        row = {"experiment": ending.name, "seconds": round(ending.seconds)}
        yield row | written(ending.name, since, results.FOLDER) | {"outcome": ending.outcome}
