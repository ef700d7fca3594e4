"""The command line of an experiment, and how it runs: cases, tables, rows and a picture."""

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from experiments.bench import fresh, results
from experiments.bench.plots import Figures, can_draw, save
from experiments.bench.progress import INTERRUPTED, PROGRESS
from experiments.bench.summary import best
from experiments.bench.table import Columns, Row, layout, legend, wrapped
from experiments.bench.timing import Effort

Job = Callable[[], Iterator[Row]]  # makes the rows of a case
Tables = Mapping[str, Columns]
Summary = Callable[[list[Row]], Iterator[Any]]  # texts, and rows of further tables
Pictures = Callable[[list[Row]], Figures]
SCRATCH = Path("build/pictures")  # for the rows and the picture of a run that nobody asked to keep


def parser(
    name: str, description: str | None, parts: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A command line with the options that all experiments share.

    Args:
        name: of the experiment.
        description: what `--help` says: the module's docstring.
        parts: of the experiment, of which ``--parts`` chooses some.
    """
    found = argparse.ArgumentParser(
        prog=f"python -m experiments {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.set_defaults(name=name)
    add = found.add_argument
    add("--quick", action="store_true", help="few and small cases: under a minute on two cores")
    add(
        "--keep",
        metavar="NAME",
        help="write rows and picture to experiments/results/<device>/jax-<version>/NAME.*, "
        "not to build/pictures",
    )
    add("--out", type=Path, metavar="DIR", help="write them below DIR instead")
    rounds = Effort().rounds
    what = "least number of timed calls (%(default)s)"
    add("--repeats", type=positive, default=rounds, metavar="N", help=what)
    add("--columns", action="store_true", help="say at the end what the columns of the tables are")
    add("--seconds", type=float, metavar="S", help="start no new case after S seconds")
    if parts:
        add("--parts", nargs="+", choices=parts, default=parts, help="which parts (all)")
    return found


def positive(text: str) -> int:
    """An integer of at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {number}")
    return number


def run(
    options: argparse.Namespace,
    cases: Sequence[Job],
    tables: Tables,
    *,
    summary: Summary | None = None,
    pictures: Pictures | None = None,
    together: Collection[str] = (),
) -> None:
    """Run cases until all are done, time is over, or Ctrl-C: tables to stdout, progress to stderr.

    Rows are written as they come, so that the file holds all there is whatever happens. As long as
    not all cases are done, it also holds the older rows that were not measured anew.

    Args:
        options: of the command line.
        cases: functions that make rows, the most important first.
        tables: the columns to print of each part ("part" of a row, "" without); rows of other
            parts are not printed.
        summary: makes texts and further tables of all rows.
        pictures: draws rows, if they are drawn; see `experiments.bench.plots`.
        together: parts whose rows make one table at the end, rather than one for each case.

    Raises:
        SystemExit: code 130, after Ctrl-C.
    """
    kept, every = SCRATCH / f"{options.name}.jsonl", list[Row]()
    if options.keep or options.out:
        kept = results.path_of(options.keep or options.name, options.out)
    older = results.groups(kept) if kept.exists() else []
    used: dict[str, str] = {}  # columns that have been printed
    start, number, ending, code = time.monotonic(), 0, "", 0

    def show(rows: Sequence[Row]) -> None:
        for part in dict.fromkeys(row.get("part", "") for row in rows):
            if columns := tables.get(part):
                group = [row for row in rows if row.get("part", "") == part]
                text, names = layout(group, columns, part)
                used.update({name: columns[name] for name in names})
                PROGRESS.print(text + "\n")

    def write(complete: bool, **about: Any) -> None:
        before = [] if complete else older
        results.write(kept, every, before, quick=options.quick, complete=complete, **about)

    if options.quick:
        PROGRESS.print(f"{options.name}, quick version: few and small cases.\n")
    PROGRESS.reset("preparing", len(cases), seconds=options.seconds)
    try:
        with PROGRESS.interrupts():
            for number, case in enumerate(cases):
                if options.seconds is not None and time.monotonic() - start > options.seconds:
                    ending = f"Stopped after {options.seconds:g} s, as --seconds says"
                    break
                PROGRESS.case(number)
                first = len(every)
                try:
                    for row in case():
                        every.append(dict(row))
                        write(complete=False)
                finally:
                    show([row for row in every[first:] if row.get("part", "") not in together])
                jax.clear_caches()  # compiled programs of cases that are done would fill the memory
        about = {}
        if options.keep and not options.quick:
            PROGRESS.say("which programs these were")
            about[fresh.PROGRAMS] = fresh.digests(options.name)
        write(complete=not ending, **about)
    except KeyboardInterrupt:
        ending, code = "Stopped by Ctrl-C", INTERRUPTED
        write(complete=False)
    show([row for row in every if row.get("part", "") in together])
    for item in summary(every) if summary else ():
        PROGRESS.print(wrapped(item) + "\n") if isinstance(item, str) else show(item)
    if used and options.columns:
        PROGRESS.print(f"Columns\n{legend(used)}\n")
    if ending:
        PROGRESS.print(f"{ending}: {number} of {len(cases)} cases done, rows so far in {kept}")
    if code:
        raise SystemExit(code)
    if used and not options.columns:
        PROGRESS.print("columns  --columns says what they are")
    PROGRESS.print(f"rows     {kept}")
    if pictures and every and can_draw():
        PROGRESS.say("drawing")
        for picture in save(kept.with_suffix(".png"), pictures(every)):
            PROGRESS.print(f"picture  {picture}")


def part(name: str, rows: Iterable[Row]) -> list[Row]:
    """Rows as those of a part."""
    return [row | {"part": name} for row in rows]


def fastest(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The summary of an experiment: its fastest programs."""
    yield part("fastest programs", best(rows))
