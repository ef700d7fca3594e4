"""The pictures of `python -m experiments kernels`.

Nodes and launches of every program on a GPU, the time that they take by the model of the device,
and the cycles of every program on a TPU.
"""

from collections.abc import Sequence
from typing import Any

from experiments.bench.plots import (
    BLUE,
    GREYS,
    SKY,
    SMALL,
    Figures,
    legend,
    plain_numbers,
    sheet,
    styled,
)
from experiments.bench.table import Row

PANELS = {  # key, title, label
    "nodes": (
        "nodes",
        "Nodes on the device, compiled{on} (left is better)",
        "kernels, library calls and copies, one after another",
    ),
    "launches": (
        "launches",
        "Launches by the host, compiled{on} (left is better)",
        "CUDA graphs, and nodes outside of them",
    ),
    "latency": (
        "latency ms",
        "Time of launches, nodes and waits, as modelled{on} (left is better)",
        "time of launches, of nodes in graphs, and of waits of the host [ms]",
    ),
    "cycles": (
        "cycles",
        "Cycles of a call as the compiler estimates them{on} (left is better)",
        "estimated time of a call [cycles]",
    ),
}


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """A line for each case: launches, and the time that they take, by every program."""
    found = {topic: [row for row in rows if panel[0] in row] for topic, panel in PANELS.items()}
    return {topic: _lines(found[topic], *PANELS[topic]) for topic in PANELS if found[topic]}


def _lines(rows: Sequence[Row], key: str, title: str, said: str) -> Any:
    """Loops in grey, deeppcr's programs in blue; crosses are what `depth` predicts."""
    cases = list(dict.fromkeys(map(named, rows)))
    loops = list(dict.fromkeys(map(_program, (row for row in rows if row["sequential"]))))
    on = f" for {rows[0]['target']}" if "target" in rows[0] else ""
    drawing, (axes,) = sheet(title.format(on=on), height=1.2 + 0.31 * len(cases))
    axes.set_xscale("log")
    for y, case in enumerate(cases):
        mine = [row for row in rows if named(row) == case]
        ours = sorted((row for row in mine if not row["sequential"]), key=lambda row: row[key])
        for row in mine:
            color = _color(row, loops, ours)
            front = 3 if color == BLUE else 2
            fill = "none" if row.get("captured") else color
            shape = "s" if row["sequential"] else "o"
            axes.plot(row[key], y, shape, color=color, mfc=fill, zorder=front)
            if key == "latency ms":
                axes.plot(row["predicted ms"], y, "x", color=color, ms=4)
        if ours:
            keys = (key, "predicted ms") if key == "latency ms" else (key,)
            least = min(row[name] for row in mine for name in keys)
            place = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right"}
            text = _program(ours[0])
            axes.annotate(text, (least, y), va="center", color=BLUE, fontsize=SMALL, **place)
    for name, color in zip(loops, GREYS, strict=False):
        axes.plot([], [], "s", color=color, label=name)
    axes.plot([], [], "o", color=BLUE, label="deeppcr, the best is named")
    axes.plot([], [], "o", color=SKY, label="deeppcr, others")
    if any(row.get("captured") for row in rows):
        label = "hollow: loops captured in CUDA graphs"
        axes.plot([], [], "s", color="black", mfc="none", label=label)
    if key == "latency ms":
        axes.plot([], [], "x", color=BLUE, ms=4, label="predicted time of a program")
    low, high = axes.get_xlim()
    axes.set_xlim(left=low / (high / low) ** 0.4)  # room for the names
    axes.set(xlabel=said, ylim=(len(cases) - 0.5, -0.5))
    plain_numbers(axes.xaxis)
    axes.set_yticks(range(len(cases)), cases)
    legend(drawing, 3)
    return drawing


def _program(row: Row) -> str:
    """The program of a row, without what is captured of it."""
    return str(row["program"]).removesuffix(", captured")


def _color(row: Row, loops: Sequence[str], ours: Sequence[Row]) -> str:
    if row["sequential"]:
        return GREYS[loops.index(_program(row)) % len(GREYS)]
    return BLUE if row is ours[0] else SKY


def named(row: Row) -> str:
    """A case in a few words: "tanh, L = 1024, w = 8, forward"."""
    kind = row.get("kind") or row.get("data") or ""
    return f"{kind}, L = {row['L']:,}, w = {row['w']}, {row['direction']}"
