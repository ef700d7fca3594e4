"""The results in the README: its table, its sentences and its picture, from the result files.

    python -m experiments report                       the table, to the terminal
    python -m experiments report --readme README.md    rewrites what is between comments there, and
                                                       draws results/<device>/headline.png

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
from typing import Any

from experiments.bench import results
from experiments.bench.plots import Figures, can_draw, dots, loops, save, styled
from experiments.bench.summary import CAPTURED, best, labels
from experiments.bench.table import Row, markdown

BEGIN, END = (
    "<!-- results: made by python -m experiments report --readme -->",
    "<!-- end of results -->",
)
NOTE = (
    "**Default** is the speedup of what deeppcr does if nothing is asked for, over the best loop: "
    "the fastest of `jax.lax.scan`, the same with `unroll=4` or `16`, for short chains a Python "
    "loop, and on a GPU `Sequential(fused=True)`. Below 1 is slower. *Compile* is the time to "
    "trace and compile it, in brackets that of `jax.lax.scan`.\n"
    "*All steps at once* is the fastest parallel program; A / B: forward pass by A, backward pass "
    "by B. *Published* figures are of parallel programs on other machines, over other loops."
)
RANGE = re.compile(r"(<!-- measured: (\w+) -->).*?(<!-- end -->)")
# Programs that may compute step by step: where they do, they are never taken for parallel ones.
SEQUENTIAL = ("auto", "adjoint, backprop")
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
MLP = {"kind": "tanh", "L": 1024, "w": 8, "batch": 1}
GRU = {"kind": "gru", "batch": 1, "direction": "gradient"}
WIDE_GRU = "gradients", {"part": "adjoints", "L": 10_000, "w": 4} | GRU
LONG_GRU = "gradients", {"part": "grid", "L": 100_000, "w": 1} | GRU
RESNET = "resnet", {"part": "times", "L": 1024}
LATENT = "diffusion", {"part": "speed", "kind": "latent", "L": 1000}
# Title -> experiment, labels of the case, and the speedup of a parallel program that others report.
# Of several cases that have the labels, the one of the largest speedup is taken.
HEADLINES: dict[str, tuple[str, Row, str]] = {
    "GRU of 4 units, T = 10,000, gradient": (*WIDE_GRU, ""),
    "GRU of 1 unit, T = 100,000, gradient": (*LONG_GRU, "808 (DEER)"),
    "MLP, 1024 layers of 8 tanh units, gradient": ("mlp", MLP | {"direction": "gradient"}, ""),
    "the same, backward pass alone": ("mlp", MLP | {"direction": "backward"}, "200 (DeepPCR)"),
    "the same, forward pass": ("mlp", MLP | {"direction": "forward"}, "30 (DeepPCR)"),
    "residual network of 1024 blocks, training": (*RESNET, "7 (DeepPCR)"),
    "latent diffusion, 1000 steps, sampling": (*LATENT, "11 (DeepPCR)"),
}
# What sentences of the README say: the default's speedups over the best loop, for 2 to 16 units.
# Name -> start of the device's name, experiment, direction.
RANGES = {
    "forward": ("cpu", "gradients", "forward"),
    "gradient": ("cpu", "gradients", "gradient"),
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
    """The table of the README: the default's speedup, that of a parallel program, and others'."""
    rows: list[Row] = []
    for title, (experiment, case, published) in HEADLINES.items():
        found = [
            {"on": device.name.removeprefix("nvidia-").split("-")[0].upper()} | cells
            for device in devices
            if (cells := _headline(case, device.rows.get(experiment, [])))
        ] or [{"on": "not measured"}]
        rows.append({"program": title} | found[0] | {"published": published})
        rows += [{"program": ""} | cells for cells in found[1:]]  # the title is said once
    columns = ["program", "on", "**default**", "predicted", "compile, s", "all steps at once", "by"]
    return markdown([{key: row.get(key, "") for key in [*columns, "published"]} for row in rows])


def _headline(case: Row, rows: Sequence[Row]) -> Row:
    """The cells of a device: what the default does, and the fastest parallel program."""
    mine = [row for row in rows if case.items() <= row.items()]
    cells: Row = {}
    default = max(filter(is_default, mine), key=_speedup, default=None)
    if default is not None:
        cells = {"**default**": default["speedup"], "predicted": default["predicted speedup"]}
        loop = labels(default) | {"program": "lax.scan"}
        loops = [row for row in mine if loop.items() <= row.items() and "trace s" in row]
        if loops and "trace s" in default:
            cells["compile, s"] = f"{_compile(default):.2g} ({_compile(loops[0]):.2g})"
    top = max(best(mine, without=SEQUENTIAL), key=_speedup, default=None)
    if top is not None:
        plain = top["parallel"].removesuffix(CAPTURED)
        named = PROGRAMS.get(plain, plain) + top["parallel"].removeprefix(plain)
        cells |= {"all steps at once": top["speedup"], "by": named}
    return cells


def is_default(row: Row) -> bool:
    """Whether a row is of what deeppcr does by default, and was measured."""
    return row.get("program") == "auto" and "speedup" in row


def _speedup(row: Row) -> float:
    return float(row["speedup"])


def _compile(row: Row) -> float:
    return float(row["trace s"]) + float(row["compile s"])


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
    return "\n\n".join([headlines(devices), NOTE, " ".join(map(measured, devices))])


def measured_ranges(devices: Sequence[Device]) -> dict[str, str]:
    """`RANGES`, in words; they stand between ``<!-- measured: NAME -->`` and an end."""
    found = {}
    for name, (start, experiment, direction) in RANGES.items():
        every = [of.rows.get(experiment, []) for of in devices if of.name.startswith(start)]
        mine = [
            row for row in chain.from_iterable(every) if is_default(row) and 2 <= row["w"] <= 16
        ]
        kinds = ("gru", "lstm", "tanh", "relu")
        mine = [row for row in mine if row["direction"] == direction and row["kind"] in kinds]
        numbers = sorted(map(_speedup, mine))
        found[name] = "not measured"
        if numbers:
            least, most = numbers[0], numbers[-1]
            found[name] = f"{median(numbers):.1f} times (median; {least:.1f} to {most:.1f})"
    return found


@styled
def picture(rows: Sequence[Row]) -> Figures:
    """The gradient of a GRU by "auto" beside the best loop, if that was measured."""
    gradients = [
        row for row in rows if (row.get("kind"), row.get("direction")) == ("gru", "gradient")
    ]
    found: dict[Any, Row] = {}
    for row in gradients:  # of a case that two parts of the experiment measure, the first
        if is_default(row):
            found.setdefault((row["w"], row["L"], row["batch"]), row)
    if not found:
        return {}
    drawing = dots(
        "Gradient of a GRU: how many times faster deeppcr is than the best loop",
        [found[key] for key in sorted(found)],
        "speedup",
        f"speedup over the fastest of {loops(gradients)} [times]\nright of 1: deeppcr is faster",
        lambda row: f"{row['w']} units, T = {row['L']:,}",
        program=lambda row: f"batch {row['batch']}; open: predicted",
        predicted="predicted speedup",
    )
    return {"headline": drawing}


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
    for device in devices:
        if "gradients" in device.rows and can_draw():
            save(device.folder / "headline.png", picture(device.rows["gradients"]))
