"""One page of the result files of several devices, predicted beside realised.

    python -m experiments report                                  all devices, to the terminal
    python -m experiments report results/cpu --page page.md       as a page, with its figures linked
    python -m experiments report --readme README.md               rewrites what is between the two
                                                                  comments there

Nothing is measured here. A cell is empty where nothing was measured.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bench import results
from experiments.bench.summary import best, errors, is_benchmark
from experiments.bench.table import Row, markdown

ORDER = ("mlp", "resnet", "diffusion", "gradients", "decide", "iterations", "kernels", "sharding")
BEGIN, END = (
    "<!-- results: made by python -m experiments report --readme -->",
    "<!-- end of results -->",
)
FIGURES = {
    "sequential ms": "sequential [ms]",
    "parallel ms": "parallel [ms]",
    "over lax.scan": "over lax.scan",
    "speedup": "speedup",
    "predicted speedup": "predicted",
}
NOTE = """Times faster than plain `jax.lax.scan`; than the fastest of that, the same with `unroll=4`
or `16`, and a Python loop; what `depth` predicts of the latter; and by which program: "auto" may
well be the sequential one, and is on a CPU, forwards. Of several cases the one of the largest
speedup; empty where nothing was measured. The published figures are of others, of other machines
and other sequential programs."""


COMPILED = """No GPU was at hand. What XLA compiles for one can be counted nevertheless: kernels,
library calls and copies, which are launched one after another, and how often the host waits.
Launches are not times, but they dominate the time of chains this narrow."""


@dataclass(frozen=True)
class Headline:
    """A line of the README's table.

    Attributes:
        title: what was measured.
        experiment: whose file it is in.
        labels: of the case; of several that have them, the one of the largest speedup is taken.
        published: what others have reported, and on what.
    """

    title: str
    experiment: str
    labels: dict[str, Any]
    published: str


COLUMNS = {
    "over lax.scan": "over lax.scan",
    "speedup": "over the best loop",
    "predicted speedup": "predicted",
    "parallel": "by",
}
MLP = {"kind": "tanh", "L": 1024, "w": 8, "batch": 1}
MLPS = [MLP | {"direction": direction} for direction in ("forward", "backward", "gradient")]
GRU = {"part": "grid", "kind": "gru", "L": 100_000, "w": 1, "direction": "gradient"}
RESNET = {"part": "times", "L": 1024}
HEADLINES = (
    Headline("MLP, 1024 layers of 8 tanh units, forward", "mlp", MLPS[0], "30 (DeepPCR)"),
    Headline("the same, backward alone", "mlp", MLPS[1], "200 (DeepPCR)"),
    Headline("the same, gradient", "mlp", MLPS[2], ""),
    Headline("training step of a residual network, 1024 blocks", "resnet", RESNET, "7 (DeepPCR)"),
    Headline("sampling from a diffusion model", "diffusion", {"part": "speed"}, "11 (DeepPCR)"),
    Headline("GRU of 1 unit, T = 100,000, gradient", "gradients", GRU, "808 (DEER)"),
)


@dataclass(frozen=True)
class Device:
    """The result files of one device.

    Attributes:
        name: as the folder is called, or its path where another one is called so, too.
        folder: where they are.
        environments: where and when each of them was made, by experiment; several for one that was
            put together.
        rows: of each.
    """

    name: str
    folder: Path
    environments: dict[str, list[Row]]
    rows: dict[str, list[Row]]


def read(folders: Sequence[Path]) -> list[Device]:
    """The result files of several devices."""
    found, names = [], [folder.name for folder in folders]
    for folder in folders:
        name = folder.name if names.count(folder.name) == 1 else str(folder)
        files = {path.stem: results.read(path) for path in sorted(folder.glob("*.jsonl"))}
        heads = {key: head for key, (head, _) in files.items()}
        found.append(Device(name, folder, heads, {key: rows for key, (_, rows) in files.items()}))
    return found


def page(devices: Sequence[Device], base: Path) -> str:
    """The whole page in Markdown; figures are linked from the folder ``base``."""
    names = {name for device in devices for name in device.rows}
    ordered = [name for name in ORDER if name in names] + sorted(names - set(ORDER))
    parts = ["# Results", markdown(list(_devices(devices)))]
    parts += ["## In short", headlines(devices), "## Predicted and measured", _errors(devices)]
    for name in ordered:
        parts += [f"## {name}", *_section(name, devices, base)]
    return "\n\n".join(part for part in parts if part) + "\n"


def headlines(devices: Sequence[Device]) -> str:
    """The table of results.

    Speedups over `lax.scan` and over the best loop, and what was predicted, for each device.
    """
    rows: list[Row] = []
    for line in HEADLINES:
        row: Row = {"speedup": line.title, "published": line.published}
        for device in devices:
            cases = best(device.rows.get(line.experiment, []), without=())
            found = [case for case in cases if _has(case, line.labels)]
            top = max(found, key=lambda case: float(case["speedup"]), default={})
            row |= {f"{device.name}: {title}": top.get(key, "") for key, title in COLUMNS.items()}
        rows.append(row)
    return markdown(rows)


def launches(devices: Sequence[Device]) -> str:
    """The same cases on a GPU that was not at hand: how many kernels they launch.

    See `experiments.kernels`.
    """
    counted = [row for device in devices for row in device.rows.get("kernels", [])]
    rows: list[Row] = []
    for line in HEADLINES:
        mine = [row for row in counted if _has(row, line.labels)]
        mine.sort(key=lambda row: float(row["launches"]))
        loops = [row for row in mine if row["sequential"]]
        others = [row for row in mine if not row["sequential"]]
        plain = next((row for row in loops if row["program"] == "lax.scan"), None)
        if plain and others:
            fewest = others[0]
            row: Row = {f"launches, {plain['target']}": line.title}
            row |= {"lax.scan": plain["launches"], "best loop": loops[0]["launches"]}
            row |= {"parallel": fewest["launches"], "by": fewest["program"]}
            row |= {"waits": fewest["waits"]}
            row |= {"fewer than lax.scan": round(fewest["fewer launches"])}
            row["than the best loop"] = round(loops[0]["launches"] / fewest["launches"])
            rows.append(row)
    return f"{COMPILED}\n\n{markdown(rows)}" if rows else ""


def readme(devices: Sequence[Device]) -> str:
    """What the README says of results.

    The table, where and with what they were measured, and what GPUs would have to do.
    """
    columns = ("device", "processor", "cores", "jax", "measured")
    lines = [{key: row[key] for key in columns} for row in _devices(devices)]
    parts = [headlines(devices), NOTE, markdown(lines), launches(devices)]
    return "\n\n".join(filter(None, parts))


def _has(case: Row, labels: Row) -> bool:
    return all(case.get(key) == value for key, value in labels.items())


def _devices(devices: Sequence[Device]) -> Iterator[Row]:
    """A line for each device: what it is, and with what it was measured."""
    for device in devices:
        heads = [head for several in device.environments.values() for head in several]

        def said(key: str, length: int | None = None, heads: list[Row] = heads) -> list[str]:
            texts = (str(head[key])[:length] for head in heads if head.get(key))
            return list(dict.fromkeys(texts))

        row: Row = {"device": device.name}
        for key in ("processor", "cores", "jax", "python"):
            row[key] = ", ".join(said(key))
        row["commits"] = ", ".join(said("commit", 9))
        times = sorted(said("time", 10))
        row["measured"] = " to ".join(dict.fromkeys([*times[:1], *times[-1:]]))
        stopped = [
            name
            for name, several in device.environments.items()
            if any(head.get("complete") is False for head in several)
        ]
        yield row | {"stopped early": ", ".join(stopped)}


def _errors(devices: Sequence[Device]) -> str:
    """How far predicted times were from measured ones."""
    found = [
        {"device": device.name, "experiment": name, **said}
        for device in devices
        for name, rows in device.rows.items()
        if (said := errors(rows))
    ]
    return "|log2(predicted / measured)| of times:\n\n" + markdown(found) if found else ""


def _section(name: str, devices: Sequence[Device], base: Path) -> Iterator[str]:
    """Figures and tables of one experiment."""
    for device in devices:
        picture = device.folder / f"{name}.png"
        if picture.exists():
            yield f"![{name} on {device.name}]({Path(os.path.relpath(picture, base)).as_posix()})"
    title = "fastest sequential and fastest parallel program of each case"
    yield _folded(title, markdown(_beside(name, devices)))
    for device in devices:
        others = [row for row in device.rows.get(name, []) if not is_benchmark(row)]
        for part in dict.fromkeys(row.get("part", "") for row in others):
            rows = [_plain(row) for row in others if row.get("part", "") == part]
            yield _folded(", ".join(filter(None, [device.name, part])), markdown(rows))


def _beside(name: str, devices: Sequence[Device]) -> list[Row]:
    """A row for every case that some device measured, all devices side by side."""
    rows: dict[tuple[tuple[str, Any], ...], Row] = {}
    titles = [f"{device.name}: {title}" for device in devices for title in FIGURES.values()]
    for device in devices:
        for found in best(device.rows.get(name, [])):
            keys = list(found)
            case = {key: found[key] for key in keys[: keys.index("sequential")]}
            row = rows.setdefault(tuple(case.items()), case | dict.fromkeys(titles, ""))
            row |= {f"{device.name}: {title}": found.get(key, "") for key, title in FIGURES.items()}
    return list(rows.values())


def _plain(row: Row) -> Row:
    """What of a row fits into a table."""
    return {
        key: "" if value is None else value
        for key, value in row.items()
        if key != "part" and not isinstance(value, dict | list)
    }


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" if text else ""


def rewrite(readme: Path, text: str) -> None:
    """Put the table between the two comments of a file.

    Raises:
        SystemExit: they are not there.
    """
    old, between = readme.read_text(encoding="utf-8"), f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    filled = f"{BEGIN}\n{text}\n{END}"
    new, count = re.subn(between, lambda _: filled, old, flags=re.DOTALL)
    if count != 1:
        sys.exit(f"{readme} has {count} places for results, expected one: {BEGIN} ... {END}")
    readme.write_text(new, encoding="utf-8")


def main(argv: list[str]) -> None:
    """Read the files; print the page, or write it, or put the table of results where it belongs."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    what = "of a device each; else all in experiments/results"
    add("folders", nargs="*", type=Path, metavar="DIR", help=what)
    add("--page", type=Path, metavar="FILE", help="write the page there")
    add("--readme", type=Path, metavar="FILE", help="rewrite the table of results in this file")
    options = parser.parse_args(argv)
    folders = options.folders or sorted(path for path in results.FOLDER.iterdir() if path.is_dir())
    devices = read(folders)
    if empty := [str(device.folder) for device in devices if not device.rows]:
        sys.exit(f"no result files in {', '.join(empty)}")
    if options.readme:
        rewrite(options.readme, readme(devices))
    if options.page:
        options.page.write_text(page(devices, options.page.absolute().parent), encoding="utf-8")
    if not options.readme and not options.page:
        print(page(devices, Path.cwd()), end="")
