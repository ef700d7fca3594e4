"""The command line of an experiment.

Options that all share, jobs until the time is over, rows and figure at the end.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

import depth
from experiments.bench.engine import HIDDEN
from experiments.bench.plots import can_draw
from experiments.bench.results import Record, path_of
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort

T = TypeVar("T")
Job = Callable[[], Iterator[Row]]
PATIENCE = 3  # seconds before a progress bar is shown


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A command line with the options that all experiments share; add those of your own.

    Args:
        name: of the experiment.
        description: what `--help` says: the module's docstring.
    """
    found = argparse.ArgumentParser(
        prog=f"python -m experiments {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("--quick", action="store_true", help="small sizes: under a minute on two cores")
    add("--keep", metavar="NAME", help="write NAME.jsonl and NAME.png to results/<device>, too")
    add("--out", type=Path, metavar="DIR", help="with --keep: write to DIR/<device> instead")
    add("--plot", type=Path, metavar="FILE", help="draw the figure into this file")
    rounds = Effort().rounds
    add(
        "--repeats", type=positive, default=rounds, help="least number of timed calls (%(default)s)"
    )
    add("--seconds", type=float, metavar="S", help="begin with nothing new after so many seconds")
    add("--calibrate", action="store_true", help="measure this device anew for the predictions")
    return found


def positive(text: str) -> int:
    """A number from 1 on."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number from 1 on")
    return number


def model(options: argparse.Namespace) -> depth.Device:
    """The model of the device at hand that times are predicted with.

    Measured, unless a quick run finds no measurement kept.
    """
    if options.quick and not options.calibrate:
        return depth.at_hand()
    return depth.calibrate(refresh=options.calibrate)


def record(options: argparse.Namespace) -> Record:
    """Where the rows go."""
    return Record(options.keep, options.out)


def run(
    options: argparse.Namespace,
    name: str,
    jobs: Sequence[Job],
    shown: Callable[[list[Row]], str] | None = None,
) -> Record:
    """Run jobs until the time is over.

    Keep the rows of each as they come, and print them as a table.

    Args:
        options: of the command line.
        name: of the experiment.
        jobs: functions that make rows, the most important one first.
        shown: makes the table of a job; None for one without the cells that are seldom looked at.

    Returns:
        All rows. Compiled programs of jobs that are done would fill the memory, so jax forgets
        them.
    """
    kept = record(options)
    for job in progress(in_time(jobs, options.seconds), name, len(jobs)):
        rows = []
        for row in job():
            rows.append(row)
            kept.add(row)
        text = (shown(rows) if shown else show(rows, HIDDEN)) if rows else ""
        if text:
            print(text + "\n", flush=True)
        jax.clear_caches()
    kept.finish()
    return kept


def conclude(
    options: argparse.Namespace, kept: Record, draw: Callable[[Path], None] | None
) -> None:
    """Say where the rows are kept, and draw the figure, ``draw(path)``, if one is asked for."""
    if kept.path:
        print("kept in", kept.path)
    if draw and (path := picture(options)) and can_draw():
        draw(path)
        print("drawn in", path)


def picture(options: argparse.Namespace) -> Path | None:
    """Where the figure goes: the file that `--plot` names, else beside the rows that are kept.

    None if nobody asks for one.
    """
    if options.plot:
        return Path(options.plot)
    return path_of(options.keep, "png", options.out) if options.keep else None


def in_time(items: Iterable[T], seconds: float | None) -> Iterator[T]:
    """The items, until the seconds are over; one that has begun is finished."""
    start = time.monotonic()
    for item in items:
        if seconds is not None and time.monotonic() - start > seconds:
            print(f"stopped after {seconds:.0f} s, as asked")
            return
        yield item


def progress(items: Iterable[T], label: str = "", total: int | None = None) -> Iterator[T]:
    """The items, with a bar on stderr once they take longer than three seconds.

    No bar without a terminal or tqdm.

    Args:
        items: what to go through.
        label: shown before the bar.
        total: how many there are, where ``items`` does not say.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield from items
        return
    look: dict[str, Any] = {"delay": PATIENCE, "disable": None, "leave": False}
    yield from tqdm(items, desc=label or None, total=total, dynamic_ncols=True, **look)
