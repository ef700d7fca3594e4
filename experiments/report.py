"""The results in the README: its table and its sentences, from the result files.

    python -m experiments report                       the table, to the terminal
    python -m experiments report --readme README.md    rewrites what is between comments there

Nothing is measured here. A cell is empty where nothing was measured. The tables of the site are
made of the same files when it is built, by docs/macros.py.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

from experiments.bench import results
from experiments.bench.summary import best
from experiments.bench.table import Row, markdown
from experiments.headline import HEADLINES, TITLE
from experiments.recurrent.beside_torch import ALONE
from experiments.recurrent.compared import BESIDE, newest

BEGIN, END = (
    "<!-- results: made by python -m experiments report --readme -->",
    "<!-- end of results -->",
)
NOTE = (
    "**Default** is the speedup of what deeppcr does if nothing is asked for, over the best loop: "
    "the fastest of `jax.lax.scan`, the same with `unroll=4` or `16`, and on a GPU "
    "`Sequential(fused=True)`. Below 1 is slower. *Predicted* by `depth`. *At once* is the fastest "
    "program that takes all steps at once, forward or backward. *Compile*: seconds to trace and to "
    "compile the default, in brackets `jax.lax.scan`. *Published* speedups are of parallel "
    "programs on other machines, over other loops."
)
TRAINED = " The first rows, of the sizes that people train, are of the newest jax named below."
RANGE = re.compile(r"(<!-- measured: (\w+) -->).*?(<!-- end -->)")
# Programs that may compute step by step: where they do, they are never taken for parallel ones.
SEQUENTIAL = ("auto", "adjoint, backprop", *BESIDE, ALONE)
PLATFORMS = {"CPU": "cpu", "GPU": "nvidia"}  # and how the names of their devices begin
COLUMNS = (
    *("program", "CPU, **default**", "CPU, predicted", "CPU, at once", "CPU, compile s"),
    *("GPU", "GPU, **default**", "GPU, predicted", "GPU, at once", "published"),
)
# What sentences of the README say: the default's speedups over the best loop, for 2 to 16 units;
# of `recurrent`, for its networks.
# Name -> start of the device's name, experiment, direction.
RANGES = {
    "forward": ("cpu", "gradients", "forward"),
    "gradient": ("cpu", "gradients", "gradient"),
    "trained": ("cpu", "recurrent", "gradient"),
    "gpu": ("nvidia", "gradients", "gradient"),
    "gpu_layers": ("nvidia", "mlp", "gradient"),
}


@dataclass(frozen=True)
class Device:
    """The result files of one device.

    Attributes:
        folder: where they are, named as the device.
        environments: where and when each of them was made, by experiment; several for one that was
            put together.
        rows: of each.
    """

    folder: Path
    environments: dict[str, list[Row]]
    rows: dict[str, list[Row]]

    @property
    def name(self) -> str:
        """As the folder is called."""
        return self.folder.name


def read(folder: Path = results.FOLDER) -> list[Device]:
    """All result files."""
    found = []
    for device in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = {path.stem: results.read(path) for path in sorted(device.glob("*.jsonl"))}
        heads = {name: head for name, (head, _) in files.items()}
        found.append(Device(device, heads, {name: rows for name, (_, rows) in files.items()}))
    return found


def headlines(devices: Sequence[Device]) -> str:
    """The table of the README: speedups on a CPU and on a GPU, and those that others report."""
    rows: list[Row] = []
    published = dict.fromkeys((row[TITLE] for each in devices for row in _trained(each)), "")
    published |= {title: headline.published for title, headline in HEADLINES.items()}
    for title in published:
        row = dict.fromkeys(COLUMNS, "") | {"program": title, "published": published[title]}
        for platform, start in PLATFORMS.items():
            mine = (_headline(title, each) for each in devices if each.name.startswith(start))
            for key, cell in next(filter(None, mine), {}).items():
                row[f"{platform}{key}"] = cell
        rows.append({key: row[key] for key in COLUMNS})
    return markdown(rows)


def _trained(device: Device) -> list[Row]:
    """The rows of `recurrent` that are shown here."""
    return newest([row for row in device.rows.get("recurrent", []) if TITLE in row])


def _headline(title: str, device: Device) -> Row:
    """The speedups of the default and of the fastest parallel program, if they were measured."""
    mine = [*device.rows.get("headline", []), *_trained(device)]
    mine = [row for row in mine if row[TITLE] == title]
    default = next(filter(is_default, mine), None)
    if default is None:
        return {}
    top = next(best(mine, without=SEQUENTIAL), {})
    cells = {"": device.name.removeprefix("nvidia-").split("-")[0].upper()}
    cells |= {", **default**": default["speedup"], ", at once": top.get("speedup", "")}
    built = [_build_seconds(row) for row in (default, mine[0])]
    cells |= {", compile s": "{:.2g} ({:.2g})".format(*built)} if all(built) else {}
    return cells | {", predicted": default.get("predicted speedup", "")}


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
    processor, jax = (", ".join(said(key)) for key in ("processor", "jax"))
    is_partial = any(head.get("complete") is False for _, every in files for head in every)
    text = f"{device.name}: {processor}, {cores}, jax {jax}, {when}."
    return text + (" Stopped early." if is_partial else "")


def readme(devices: Sequence[Device]) -> str:
    """What the README says of results: the table, and where and with what it was measured."""
    note = NOTE + TRAINED * any(map(_trained, devices))
    return "\n\n".join([headlines(devices), note, " ".join(map(measured, devices))])


def measured_ranges(devices: Sequence[Device]) -> dict[str, str]:
    """`RANGES`, in words; they stand between ``<!-- measured: NAME -->`` and an end."""
    found = {}
    for name, (start, experiment, direction) in RANGES.items():
        every = [of.rows.get(experiment, []) for of in devices if of.name.startswith(start)]
        mine = [row for row in chain.from_iterable(every) if is_default(row)]
        mine = newest(mine) if experiment == "recurrent" else mine
        mine = [row for row in mine if row["direction"] == direction and _is_meant(row)]
        numbers = sorted(float(row["speedup"]) for row in mine)
        found[name] = "not measured"
        if numbers:
            least, most = numbers[0], numbers[-1]
            found[name] = f"{median(numbers):.1f} times (median; {least:.1f} to {most:.1f})"
    return found


def _is_meant(row: Row) -> bool:
    """Whether a sentence is about the program of a row."""
    if row.get("part") == "networks":  # of `recurrent`
        return True
    return row["kind"] in ("gru", "lstm", "tanh", "relu") and 2 <= row["w"] <= 16


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
