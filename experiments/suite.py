"""All of the above, one after another, within a time budget if one is given.

Each has a process of its own, so that it has the device for itself, and a share of the seconds that
are left, after which it starts no further case. One that takes too long, crashes or lacks a package
is a line in the table at the end, and the rows that it has written stay.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.command import positive
from experiments.bench.progress import INTERRUPTED, PROGRESS
from experiments.bench.table import Row, show

TAKES = "30 min"
GRACE = 0.1  # share of its time in which an experiment finishes its last case, and the picture
ROOT = Path(__file__).parent.parent
WEIGHTS = {  # seconds on two cores: shares of the time that is left, the most important first
    "headline": 260,
    "mlp": 90,
    "resnet": 110,
    "diffusion": 220,
    "gradients": 110,
    "recurrent": 150,
    "decide": 110,
    "foresight": 180,
    "iterations": 180,
    "field": 70,
    "kernels": 60,
    "recurrence": 50,
    "calls": 40,
    "compiling": 100,
    "loops": 80,
    "text": 80,
}


def command(name: str, seconds: float, quick: bool, out: Path | None) -> list[str]:
    """The command line that runs an experiment for ``seconds``."""
    line = [sys.executable, "-m", "experiments", name, "--keep", name]
    line += ["--quick"] * quick + (["--out", str(out)] if out else [])
    return line + (["--seconds", f"{(1 - GRACE) * seconds:.0f}"] if seconds < math.inf else [])


def attempt(line: list[str], seconds: float) -> str:
    """Run a command for at most ``seconds``, and return how it ended: "done", or why not."""
    try:
        code = subprocess.run(line, cwd=ROOT, timeout=min(seconds, 1e6), check=False).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:.0f} s"
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return f"failed ({code})" if code else "done"


def check(names: Sequence[str]) -> None:
    """Print which results of this device and jax are older than the programs, if any.

    Raises:
        SystemExit: code 1, if some are.
    """
    from experiments.bench import fresh

    reasons = {name: fresh.old(name) for name in names}
    for name in (aged := {name: reason for name, reason in reasons.items() if reason}):
        print(f"{name}: {aged[name]}")
    if aged:
        sys.exit(f"measure them anew: python -m experiments suite --only {' '.join(aged)}")
    print("all results are of the programs that run")


def main(argv: list[str]) -> None:
    """Run experiments, and print how each has ended."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="the quick version of each: a minute on two cores")
    add("--only", nargs="+", choices=WEIGHTS, metavar="NAME", help="these experiments (all)")
    add(
        "--check",
        action="store_true",
        help="measure nothing: say which results are old, and exit 1",
    )
    add("--budget", type=positive, metavar="S", help="seconds for all of them (no limit)")
    add("--out", type=Path, metavar="DIR", help="write below DIR (experiments/results)")
    options = parser.parse_args(argv)
    names = [name for name in WEIGHTS if not options.only or name in options.only]
    if options.check:
        check(names)
        return
    out, rows = options.out and options.out.absolute(), list[Row]()
    end = time.monotonic() + (options.budget or math.inf)
    try:
        for number, name in enumerate(names):
            PROGRESS.print(f"\n-- {name}, {number + 1} of {len(names)}")
            start = time.monotonic()
            share = WEIGHTS[name] / sum(WEIGHTS[other] for other in names[number:])
            seconds = max(share * (end - start), 1.0)
            outcome = attempt(command(name, seconds, options.quick, out), seconds)
            row = {"experiment": name, "seconds": round(time.monotonic() - start)}
            rows.append(row | {"outcome": outcome})
    finally:
        PROGRESS.print(f"\n{show(rows)}")
