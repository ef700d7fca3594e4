"""What all experiments are asked in the same words: options, the device's model, and when to stop."""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import depth
from experiments.common.plots import can_draw
from experiments.common.results import Record, path_of
from experiments.common.versus import REPEATS

T = TypeVar("T")


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
    found.add_argument(
        "--quick", action="store_true", help="small sizes: under a minute on two cores"
    )
    found.add_argument(
        "--keep", metavar="NAME", help="write NAME.jsonl and NAME.png to results/<device>, too"
    )
    found.add_argument(
        "--out", type=Path, metavar="DIR", help="with --keep: write to DIR/<device> instead"
    )
    found.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure into this file")
    found.add_argument(
        "--repeats",
        type=positive,
        default=REPEATS,
        help="timed calls of each program, at least (%(default)s)",
    )
    found.add_argument(
        "--seconds", type=float, metavar="S", help="begin with nothing new after so many seconds"
    )
    found.add_argument(
        "--calibrate", action="store_true", help="measure this device anew for the predictions"
    )
    return found


def positive(text: str) -> int:
    """A number from 1 on."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number from 1 on")
    return number


def model(options: argparse.Namespace) -> depth.Device:
    """The model of the device at hand that times are predicted with: measured, unless a quick run finds no measurement kept."""
    if options.quick and not options.calibrate:
        return depth.at_hand()
    return depth.calibrate(refresh=options.calibrate)


def record(options: argparse.Namespace) -> Record:
    """Where the rows go."""
    return Record(options.keep, options.out)


def picture(options: argparse.Namespace) -> Path | None:
    """Where the figure goes: the file that `--plot` names, else beside the rows that are kept; None if nobody asks for one."""
    if options.plot:
        return Path(options.plot)
    return path_of(options.keep, "png", options.out) if options.keep else None


def conclude(
    options: argparse.Namespace, kept: Record, draw: Callable[[Path], None] | None
) -> None:
    """Say where the rows are kept, and draw the figure."""
    if kept.path:
        print("kept in", kept.path)
    draw_figure(options, draw)


def draw_figure(options: argparse.Namespace, draw: Callable[[Path], None] | None) -> None:
    """Draw the figure, ``draw(path)``, if somebody asks for one and it can be drawn; None if there is nothing to draw."""
    if draw and (path := picture(options)) and can_draw():
        draw(path)
        print("drawn in", path)


def in_time(items: Iterable[T], seconds: float | None) -> Iterator[T]:
    """The items, until the seconds are over; one that has begun is finished."""
    start = time.monotonic()
    for item in items:
        if seconds is not None and time.monotonic() - start > seconds:
            print(f"stopped after {seconds:.0f} s, as asked")
            return
        yield item
