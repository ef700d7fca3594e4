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
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.command import positive
from experiments.bench.progress import INTERRUPTED, PROGRESS
from experiments.bench.table import Row, show

TAKES = "1 h"
GRACE = 10.0  # seconds to end an experiment that does not end by itself
FINISHING = 20.0  # seconds to finish the last case
LEAST = 60.0  # seconds; with less no experiment starts, and a quick one with a third
ROOT = Path(__file__).parent.parent
WEIGHTS = {  # shares of the time that is left, the most important first
    "mlp": 4,
    "resnet": 3,
    "diffusion": 3,
    "gradients": 5,
    "decide": 3,
    "iterations": 2,
    "field": 2,
    "kernels": 1,
    "recurrence": 1,
    "prediction": 2,
    "calls": 1,
    "compile_time": 2,
}


def command(name: str, seconds: float, quick: bool, out: Path | None) -> list[str]:
    """The command line that runs an experiment for ``seconds``: the last case, and the picture."""
    line = [sys.executable, "-m", "experiments", name, "--keep", name]
    line += ["--quick"] * quick + (["--out", str(out)] if out else [])
    if seconds < math.inf:
        line += ["--seconds", f"{max(1.0, seconds - max(FINISHING, 0.1 * seconds)):.0f}"]
    return line


def attempt(line: Sequence[str], seconds: float, log: Path) -> str:
    """Run a command for at most ``seconds``, and return how it ended: "done", or why not."""
    with log.open("w") as file:
        # In a session of its own: the processes that it has started end with it.
        process = subprocess.Popen(
            line, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(None if seconds == math.inf else seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # as Ctrl-C: it prints its table to the log
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE / 2)
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code == 0:
        return "done"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"failed ({code}): {lines[-1][:160] if lines else 'it printed nothing'}"


def main(argv: list[str]) -> None:
    """Run experiments, print a line as each ends, and a table of all at the end."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="the quick version of each: a minute on two cores")
    add("--only", nargs="+", choices=WEIGHTS, metavar="NAME", help="these experiments (all)")
    add("--budget", type=positive, metavar="S", help="seconds for all of them (no limit)")
    add("--out", type=Path, metavar="DIR", help="write to DIR/<device> (experiments/results)")
    add("--logs", type=Path, metavar="DIR", help="write their output to DIR (a temporary folder)")
    options = parser.parse_args(argv)
    names = [name for name in WEIGHTS if not options.only or name in options.only]
    logs = Path(options.logs or tempfile.mkdtemp(prefix="experiments-"))
    logs.mkdir(parents=True, exist_ok=True)
    out = options.out and options.out.absolute()
    least, rows = LEAST / 3 if options.quick else LEAST, list[Row]()
    end = time.monotonic() + (options.budget or math.inf)
    PROGRESS.reset("starting", len(names), unit="experiment", seconds=options.budget)
    # SIGTERM as Ctrl-C: an exception, at which `attempt` ends the processes that it has started.
    before, ending = signal.signal(signal.SIGTERM, signal.default_int_handler), ""
    try:
        for number, name in enumerate(names):
            PROGRESS.case(number, name)
            start, left = time.monotonic(), end - time.monotonic() - GRACE
            share = left * WEIGHTS[name] / sum(WEIGHTS[other] for other in names[number:])
            seconds, outcome = min(left, max(least, share)), f"not started: {left:.0f} s were left"
            if left >= least:
                line = command(name, seconds, options.quick, out)
                outcome = attempt(line, seconds, logs / f"{name}.log")
            row = {"experiment": name, "seconds": round(time.monotonic() - start)}
            rows.append(row | {"outcome": outcome})
            PROGRESS.print(f"{name}: {outcome}")
    except KeyboardInterrupt:
        ending = f"Stopped by Ctrl-C: {len(rows)} of {len(names)} experiments"
    finally:
        signal.signal(signal.SIGTERM, before)
    PROGRESS.print(f"\n{show(rows)}\n\nlogs     {logs}")
    if ending:
        PROGRESS.print(ending)
        sys.exit(INTERRUPTED)
