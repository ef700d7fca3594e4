"""The results in the README: its table and its sentences, from the result files.

    python -m experiments report                       the table, to the terminal
    python -m experiments report --readme README.md    rewrites what is between comments there

They are those of a CPU and of the newest version of jax on which `headline` was measured. Nothing
is measured here. A cell is empty where nothing was measured. The tables of the site are made of the
same files when it is built, by docs/macros.py.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.bench import results
from experiments.bench.table import Row, markdown
from experiments.headline import HEADLINES, RATIO, TITLE

BEGIN, END = (
    "<!-- results: made by python -m experiments report --readme -->",
    "<!-- end of results -->",
)
NOTE = (
    "**Speedup** is that of what deeppcr does if nothing is asked for, over the best loop: the "
    "fastest of `jax.lax.scan`, the same with `unroll=4` or `16`. Below 1 is slower. *Predicted* "
    "by `depth`, from the program alone; times in milliseconds. *Compile*: "
    "seconds to trace and to compile, in brackets `jax.lax.scan`. *Published* speedups are of "
    "parallel programs on GPUs, over other loops."
)
PICTURE = "![Speedup on a CPU, measured and predicted](experiments/results/{}/headline.png)"
RANGE = re.compile(r"(<!-- measured: (\w+) -->).*?(<!-- end -->)")


def _is_narrow(row: Row) -> bool:
    return row["direction"] == "gradient" and 2 <= row["w"] <= 16


# What sentences of the README say: the default's speedups over the best loop.
# Name -> experiment, and which of its rows.
RANGES: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "alone": ("gradients", lambda row: _is_narrow(row) and row["batch"] == 1),
    "batched": ("gradients", lambda row: _is_narrow(row) and row["batch"] > 1),
    "forward": ("gradients", lambda row: row["direction"] == "forward" and 2 <= row["w"] <= 16),
    "trained": ("recurrent", lambda row: row.get("part") == "networks"),
}


@dataclass(frozen=True)
class Device:
    """The result files of one device and one version of jax.

    Attributes:
        folder: where they are: ``<device>/jax-<version>``.
        environments: where and when each of them was made, by experiment; several for one that was
            put together.
        rows: of each.
    """

    folder: Path
    environments: dict[str, list[Row]]
    rows: dict[str, list[Row]]

    @property
    def name(self) -> str:
        """The device."""
        return self.folder.parent.name

    @property
    def version(self) -> str:
        """Of jax."""
        return self.folder.name.removeprefix("jax-")


def read(folder: Path = results.FOLDER) -> list[Device]:
    """All result files, by device, those of the newest jax first."""
    found = []
    for device in results.folders(folder):
        files = {path.stem: results.read(path) for path in sorted(device.glob("*.jsonl"))}
        heads = {name: head for name, (head, _) in files.items()}
        found.append(Device(device, heads, {name: rows for name, (_, rows) in files.items()}))
    return found


def newest(devices: Sequence[Device]) -> Device:
    """The CPU, with the newest version of jax on which the programs of the README were measured."""
    found = (each for each in devices if each.name == "cpu" and "headline" in each.rows)
    return next(found, Device(Path("cpu/jax-0"), {}, {}))


def headlines(device: Device) -> str:
    """The table of the README: what was measured and predicted, and what others report."""
    rows = []
    for title, headline in HEADLINES.items():
        mine = [row for row in device.rows.get("headline", []) if row[TITLE] == title]
        default = next(filter(is_default, mine), {})
        built = [_build_seconds(row) for row in (default, *mine[:1])]
        row = {"program": title, "**speedup**": default.get("speedup", "")}
        row["predicted"] = default.get("predicted speedup", "")
        row["over `lax.scan`"] = default.get("over lax.scan", "")
        row |= {"ms": default.get("ms", ""), "predicted ms": default.get("predicted ms", "")}
        row[RATIO] = default.get(RATIO, "")
        row["compile s"] = "{:.2g} ({:.2g})".format(*built) if all(built) else ""
        rows.append(row | {"published": headline.published})
    return markdown(rows)


def _build_seconds(row: Row) -> float:
    """To trace and to compile; 0 where that was not measured."""
    return float(row.get("trace s", 0) + row["compile s"]) if row.get("compile s") else 0.0


def is_default(row: Row) -> bool:
    """Whether a row is of what deeppcr does by default, and was measured."""
    return row.get("program") == "auto" and "speedup" in row


def measured(device: Device, *experiments: str) -> str:
    """A line on where, with what and when some experiments were run, or all of them."""
    files = device.environments.items()
    heads = [head for name, every in files for head in every if name in (experiments or (name,))]

    def said(key: str, length: int | None = None) -> list[str]:
        return list(dict.fromkeys(str(head[key])[:length] for head in heads if head.get(key)))

    cores, times = ", ".join(said("cores")), sorted(said("time", 10))
    when = " to ".join(dict.fromkeys([*times[:1], *times[-1:]]))
    cores = f"{cores} core" + "s" * (cores != "1")
    processor, jax, commits = (
        ", ".join(said(*key)) for key in (("processor",), ("jax",), ("commit", 7))
    )
    is_partial = any(head.get("complete") is False for head in heads)
    text = f"{device.name}: {processor}, {cores}, jax {jax}, commit {commits or '?'}, {when}."
    notes = [*(f"{note}." for note in said("note")), *["Stopped early."] * is_partial]
    return " ".join([text, *notes])


def readme(devices: Sequence[Device]) -> str:
    """What the README says of results: picture, table, and where they were measured."""
    device = newest(devices)
    place = f"{device.name}/{device.folder.name}"
    return "\n\n".join(
        [PICTURE.format(place), headlines(device), NOTE, measured(device, "headline")]
    )


def measured_ranges(devices: Sequence[Device]) -> dict[str, str]:
    """`RANGES`, in words; they stand between ``<!-- measured: NAME -->`` and an end."""
    found, device = {}, newest(devices)
    for name, (experiment, is_meant) in RANGES.items():
        mine = filter(is_default, device.rows.get(experiment, []))
        numbers = sorted(float(row["speedup"]) for row in mine if is_meant(row))
        found[name] = "not measured"
        if numbers:
            least, most = numbers[0], numbers[-1]
            found[name] = f"{median(numbers):.1f} times (median; {least:.1f} to {most:.1f})"
    return found


def rewrite(path: Path, text: str, ranges: Mapping[str, str]) -> None:
    """Put the table between the two comments of a file, and ranges between those of sentences.

    Raises:
        SystemExit: there is no place for the table, or a range that nobody knows.
    """
    old, between = path.read_text(encoding="utf-8"), f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    filled = f"{BEGIN}\n{text}\n{END}"
    new, count = re.subn(between, lambda _: filled, old, flags=re.DOTALL)
    if count != 1:
        sys.exit(f"{path} has {count} places for results, expected one: {BEGIN} ... {END}")
    if unknown := {name for _, name, _ in RANGE.findall(new)} - set(ranges):
        sys.exit(f"{path}: no range is called {unknown.pop()!r}; there are {', '.join(ranges)}")
    new = RANGE.sub(lambda found: f"{found[1]}{ranges[found[2]]}{found[3]}", new)
    path.write_text(new, encoding="utf-8")


def main(argv: list[str]) -> None:
    """Read the files; print the table, or put it where it belongs."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = "rewrite the table of results in this file"
    parser.add_argument("--readme", type=Path, metavar="FILE", help=what)
    options = parser.parse_args(argv)
    devices = read()
    if not options.readme:
        print(readme(devices))
        return
    rewrite(options.readme, readme(devices), measured_ranges(devices))
