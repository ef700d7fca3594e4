"""Tables of the result files: one for the README, and a page of everything measured.

    python -m experiments report                                  all devices, to the terminal
    python -m experiments report results/cpu --page page.md       as a page, with its figures linked
    python -m experiments report --readme README.md               rewrites what is between the two
                                                                  comments there, and draws
                                                                  results/<device>/headline.png

Nothing is measured here. A cell is empty where nothing was measured. The tables of the site are
made of the same files when it is built, by docs/measured.py.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bench import results
from experiments.bench.plots import can_draw
from experiments.bench.summary import CAPTURED, best, errors, is_benchmark
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
NOTE = (
    "Speedups over the fastest of `jax.lax.scan`, the same with `unroll=4` or `16`, and, for short "
    "chains, a Python loop, and on a GPU `Sequential(fused=True)`; below 1 is slower.\n"
    "Published figures come from other machines and other sequential programs. "
    "A / B: forward pass by A, backward pass by B. On a CPU every method here solves its linear "
    "recurrence sequentially."
)
RANGE = re.compile(r"(<!-- measured: (\w+) -->).*?(<!-- end -->)")
# Programs that may compute step by step: where they do, they are never taken for parallel ones.
SEQUENTIAL = ("auto", "adjoint, backprop")
REWRITTEN = "the loop, rewritten"
PROGRAMS = {
    "auto": '"auto"',
    "newton": "Newton's method",
    "picard": "Picard iteration",
    "picard, coarse guess": "Picard iteration, coarse guess",
    "blocks": "Jacobian blocks",
    "sequential / blocks": "loop / Jacobian blocks",
    "sequential / dense": "loop / Jacobian blocks",
    "newton / blocks": "Newton's method / Jacobian blocks",
    "adjoint, recurrence": "loop / Jacobian blocks",
    "adjoint, pcr": "loop / cyclic reduction",
}


@dataclass(frozen=True)
class Headline:
    """A row of the README's table.

    Attributes:
        title: what was measured.
        experiment: whose file it is in.
        labels: of the case; of several that have them, the one of the largest speedup is taken.
        published: the speedup of a parallel program that others report.
        is_sequential: whether it is about the sequential program that "auto" makes of the loop, and
            not about parallel ones.
    """

    title: str
    experiment: str
    labels: Row
    published: str = ""
    is_sequential: bool = False


MLP = {"kind": "tanh", "L": 1024, "w": 8, "batch": 1}
FORWARD, BACKWARD, GRADIENT = (
    {"direction": direction} for direction in ("forward", "backward", "gradient")
)
GRU = {"kind": "gru", "batch": 1} | GRADIENT
WIDE_GRU = {"part": "adjoints", "L": 10_000, "w": 4} | GRU
LONG_GRU = {"part": "grid", "L": 100_000, "w": 1} | GRU
RESNET = {"part": "times", "L": 1024}
LATENT = {"part": "speed", "kind": "latent", "L": 1000}
HEADLINES = (
    Headline("GRU of 4 units, T = 10,000, gradient", "gradients", WIDE_GRU),
    Headline("GRU of 1 unit, T = 100,000, gradient", "gradients", LONG_GRU, "808 (DEER)"),
    Headline("MLP, 1024 layers of 8 tanh units, gradient", "mlp", MLP | GRADIENT),
    Headline("the same, backward pass alone", "mlp", MLP | BACKWARD, "200 (DeepPCR)"),
    Headline("the same, forward pass", "mlp", MLP | FORWARD, "30 (DeepPCR)"),
    Headline("residual network of 1024 blocks, training", "resnet", RESNET, "7 (DeepPCR)"),
    Headline("latent diffusion, 1000 steps, sampling", "diffusion", LATENT, "11 (DeepPCR)"),
    Headline(
        "MLP forward, no parallel program: the sequential loop, rewritten",
        "mlp",
        MLP | FORWARD,
        is_sequential=True,
    ),
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
    """The table of the README: published, measured and predicted speedups."""
    rows: list[Row] = []
    for line in HEADLINES:
        found = {
            device.name: _headline(line, device.rows.get(line.experiment, [])) for device in devices
        }
        shown = {name: row for name, row in found.items() if row["measured"]}
        for name, row in (shown or dict([*found.items()][:1])).items():
            title: Row = {"speedup": line.title, "published, parallel": line.published}
            if name in list(shown)[1:]:  # said once
                title = dict.fromkeys(title, "")
            on = {"on": name if name in shown else ""} if len(devices) > 1 else {}
            rows.append(title | on | row)
    return markdown(rows)


def _headline(line: Headline, rows: Sequence[Row]) -> Row:
    """The cells of a device: of the fastest program of the kind that the line is about."""
    mine = [row for row in rows if _has(row, line.labels)]
    if line.is_sequential:
        loops = [row for row in mine if row.get("program") == "auto" and is_loop(row)]
        found = [row | {"parallel": REWRITTEN} for row in loops]
    else:
        found = list(best(mine, without=SEQUENTIAL))
    top = max(found, key=lambda row: float(row["speedup"]), default={})
    program = top.get("parallel", "")
    plain = program.removesuffix(CAPTURED)
    return {
        "measured": top.get("speedup", ""),
        "predicted": top.get("predicted speedup", ""),
        "by": PROGRAMS.get(plain, plain) + program.removeprefix(plain),
    }


def readme(devices: Sequence[Device]) -> str:
    """What the README says of results: the table, and where and with what it was measured."""
    return "\n\n".join([headlines(devices), NOTE, " ".join(map(measured, devices))])


def measured(device: Device, *experiments: str) -> str:
    """A line on where, with what and when some experiments were run, or all of them."""
    (row,) = _devices([device], *experiments)
    cores = f"{row['cores']} core" + "s" * (row["cores"] != "1")
    stopped = " Stopped early." if row["stopped early"] else ""
    text = f"{device.name}: {row['processor']}, {cores}, jax {row['jax']}, {row['measured']}."
    return text + stopped


def measured_ranges(devices: Sequence[Device]) -> dict[str, str]:
    """What sentences of the README say of CPUs, between ``<!-- measured: NAME -->`` and an end.

    gradient: the speedups of gradients of narrow recurrent networks over the best loop, by "auto".
    loop: the time of the sequential program that "auto" makes of a loop, forward, in that of the
    best `jax.lax.scan`.
    """
    rows = [
        row
        for device in devices
        if device.name == "cpu"
        for name in ("gradients", "mlp")
        for row in device.rows.get(name, [])
        if row.get("program") == "auto" and "speedup" in row
    ]
    gradients = [
        row["speedup"]
        for row in rows
        if row["kind"] in ("gru", "lstm") and 2 <= row["w"] <= 16 and _has(row, GRADIENT)
    ]
    loops = [1 / row["speedup"] for row in rows if _has(row, FORWARD) and is_loop(row)]
    return {"gradient": _range(gradients, " times"), "loop": _range(loops)}


def _range(numbers: Sequence[float], unit: str = "") -> str:
    return f"{min(numbers):.1f} to {max(numbers):.1f}{unit}" if numbers else "not measured"


def is_loop(row: Row) -> bool:
    """Whether a program of "auto" is as deep as the loop: the loop, rewritten."""
    return bool(row.get("depth speedup", 1.0) <= 1.0)


def draw_headlines(devices: Sequence[Device]) -> None:
    """Draw the figure of the README into the folder of each device with gradients."""
    drawn = [device for device in devices if device.rows.get("gradients")]
    if drawn and can_draw():
        from experiments.bench.headline import draw

        for device in drawn:
            draw(device.rows["gradients"], device.folder / "headline.png")


def _has(case: Row, labels: Row) -> bool:
    return all(case.get(key) == value for key, value in labels.items())


def _devices(devices: Sequence[Device], *experiments: str) -> Iterator[Row]:
    """A row for each device: what it is, and with what it was measured, by some experiments."""
    for device in devices:
        heads = [
            head
            for name, several in device.environments.items()
            for head in several
            if not experiments or name in experiments
        ]

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
        for path in [device.folder / f"{name}.png", *sorted(device.folder.glob(f"{name}_*.png"))]:
            if path.exists():
                target = Path(os.path.relpath(path, base)).as_posix()
                yield f"![{path.stem} on {device.name}]({target})"
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
        for found in best(device.rows.get(name, []), without=SEQUENTIAL):
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


def rewrite(readme: Path, text: str, ranges: Mapping[str, str]) -> None:
    """Put the table between the two comments of a file, and ranges between those of sentences.

    Raises:
        SystemExit: there is no place for the table, or a range that nobody knows.
    """
    old, between = readme.read_text(encoding="utf-8"), f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    filled = f"{BEGIN}\n{text}\n{END}"
    new, count = re.subn(between, lambda _: filled, old, flags=re.DOTALL)
    if count != 1:
        sys.exit(f"{readme} has {count} places for results, expected one: {BEGIN} ... {END}")
    if unknown := {name for _, name, _ in RANGE.findall(new)} - set(ranges):
        sys.exit(f"{readme}: no range is called {unknown.pop()!r}; there are {', '.join(ranges)}")
    new = RANGE.sub(lambda found: f"{found[1]}{ranges[found[2]]}{found[3]}", new)
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
        rewrite(options.readme, readme(devices), measured_ranges(devices))
        draw_headlines(devices)
    if options.page:
        options.page.write_text(page(devices, options.page.absolute().parent), encoding="utf-8")
    if not options.readme and not options.page:
        print(page(devices, Path.cwd()), end="")
