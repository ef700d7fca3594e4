"""The pictures of `python -m experiments gradients`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.bench.plots import (
    COLORS,
    GREEN,
    YELLOW,
    Figures,
    legend,
    loops,
    plain_numbers,
    series,
    sheet,
    styled,
    values_as_ticks,
)
from experiments.bench.summary import cases, is_benchmark
from experiments.bench.table import Row
from experiments.gradients.network import ADJOINTS
from experiments.gradients.silero import FRAME, RATE

LAYERS = (*COLORS[:0:-1], "#bcdff5", YELLOW, GREEN, "black")  # of curves on each other, from below
BETTER = "right of 1: deeppcr is faster"
DRAWN = 3  # tasks


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Speedups of gradients, forward passes and layers; learning; speech."""
    parts = {
        name: [row for row in rows if row.get("part") == name]
        for name in {row.get("part") for row in rows}
    }
    found: Figures = {}
    for direction, topic in (("gradient", "adjoints"), ("forward", "forward")):
        mine = [row for row in parts.get("adjoints", []) if row["direction"] == direction]
        if any("speedup" in row for row in mine):
            found[topic] = _adjoints(mine, direction)
    grid = [row for row in parts.get("grid", []) if row["batch"] == 1 and is_benchmark(row)]
    if best_parallel(grid):
        found["length"] = _lengths(grid)
    if layers := [row for row in parts.get("layers", []) if row["program"] == "auto"]:
        found["layers"] = _layers(layers, loops(parts["layers"]))
    if training := parts.get("training"):
        found["training"] = _training(training)
    if heard := parts.get("heard"):
        found["speech"] = _speech(heard)
    return found


def _adjoints(rows: Sequence[Row], direction: str) -> Any:
    """Speedups over the fastest loop by case: filled as measured, open as predicted."""
    found = sorted(cases(rows), key=lambda one: tuple(one[0][key] for key in ("L", "w", "batch")))
    what = (
        "Gradient of a GRU by each adjoint" if direction == "gradient" else "Forward pass of a GRU"
    )
    drawing, (axes,) = sheet(f"{what}: speedup over the best loop", height=1.5 + 0.42 * len(found))
    for number, name in enumerate(ADJOINTS[direction]):
        look = {"color": COLORS[number]}
        aside = 0.17 * (number - (len(ADJOINTS[direction]) - 1) / 2)
        for y, (_, group) in enumerate(found):
            points = [row | {"y": y + aside} for row in group if row["program"] == name]
            series(axes, points, "predicted speedup", "y", "o", mfc="none", **look)
            series(axes, points, "speedup", "y", "o", **look)
        axes.plot([], [], "o", label=name, **look)
    axes.plot([], [], "o", color="0.4", mfc="none", label="predicted")
    axes.axvline(1, color="black", linewidth=1)
    names = [f"T = {of['L']:,}, {of['w']} units, batch {of['batch']}" for of, _ in found]
    axes.set_yticks(range(len(found)), names)
    for y in range(1, len(found)):
        axes.axhline(y - 0.5, color="0.85", lw=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set(xscale="log", xlabel=f"speedup over the fastest of {loops(rows)} [times]\n{BETTER}")
    plain_numbers(axes.xaxis)
    legend(drawing, 5)
    return drawing


def best_parallel(rows: Sequence[Row]) -> list[Row]:
    """For every size the fastest program that is right and parallel, wholly or in its adjoint."""
    best: dict[tuple[int, int], Row] = {}
    for row in rows:
        size = row["L"], row["w"]
        if not row["baseline"] and row["program"] != "auto" and "speedup" in row:
            best[size] = max(best.get(size, row), row, key=lambda row: row["speedup"])
    return [best[size] for size in sorted(best)]


def _lengths(rows: Sequence[Row]) -> Any:
    """A colour for every kind and number of units: solid as measured, dashed as predicted."""
    directions = [
        name for name in ("gradient", "forward") if any(row["direction"] == name for row in rows)
    ]
    title = "GRU and LSTM, batch 1: above 1, the best parallel program is faster"
    drawing, panels = sheet(title, len(directions), height=3.8, sharey=True)
    nets = sorted({(row["kind"], row["w"]) for row in rows})
    for axes, direction in zip(panels, directions, strict=True):
        for color, (kind, units) in zip(COLORS, nets, strict=False):
            mine = [
                row
                for row in rows
                if (row["kind"], row["w"], row["direction"]) == (kind, units, direction)
            ]
            best, label = best_parallel(mine), f"{kind.upper()}, {units} unit" + "s" * (units > 1)
            axes.plot([], [], "o-", color=color, label=label)
            series(axes, best, "L", "speedup", "o-", color=color)
            series(axes, best, "L", "predicted speedup", "o--", mfc="white", lw=1, color=color)
        axes.plot([], [], "o--", lw=1, mfc="white", color="0.4", label="predicted")
        axes.axhline(1, color="black", linewidth=1)
        passes = "forward pass and gradient" if direction == "gradient" else "forward pass alone"
        axes.set(xscale="log", yscale="log", xlabel="steps T", title=passes)
        values_as_ticks(axes.xaxis, sorted({row["L"] for row in rows}))
        axes.margins(x=0.12)
        plain_numbers(axes.yaxis)
    panels[0].set_ylabel(f"speedup over the fastest of\n{loops(rows)} [times]")
    legend(drawing, 5)
    return drawing


def _layers(rows: Sequence[Row], baseline: str) -> Any:
    """Speedups of layers by cell, with a colour for each number of units and of sequences."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    looks = dict(zip(sorted({(r["w"], r["batch"]) for r in rows}), COLORS * 2, strict=False))
    title = "Recurrent layers: gradient by deeppcr.nn.RNN"
    drawing, (axes,) = sheet(title, height=2 + 0.45 * len(kinds))
    for (units, batch), color in looks.items():
        mine = [row for row in rows if (row["w"], row["batch"]) == (units, batch)]
        points = [row | {"y": kinds.index(row["kind"])} for row in mine]
        label = f"{units} units, batch {batch}"
        series(axes, points, "speedup", "y", "o", color=color, label=label)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.set(xscale="log", xlabel=f"speedup over flax.nnx.RNN by {baseline} [times]\n{BETTER}")
    plain_numbers(axes.xaxis)
    legend(drawing, 3)
    return drawing


def _training(rows: Sequence[Row]) -> Any:
    """A panel for each of the longest tasks: a curve for each way to train, the first below."""
    longest = sorted({(-row["L"], row["kind"], row["w"]) for row in rows})[:DRAWN]
    drawing, panels = sheet("A GRU learns: the same curve by every program", len(longest))
    for axes, (length, kind, units) in zip(panels, longest, strict=True):
        mine = [row for row in rows if row["kind"] == kind]
        for k, row in enumerate(mine):
            axes.plot(row["losses"], label=row["program"], **_layer(k, len(mine)))
        axes.set(xlabel="training step", title=f"{kind}: T = {-length}, {units} units")
        axes.set(yscale="log")
    panels[0].set_ylabel("loss [nats]")
    legend(drawing, 4)
    return drawing


def _layer(k: int, count: int) -> dict[str, Any]:
    """The look of curves that lie on each other: wide and pale below, thin and dark on top."""
    return {"lw": 0.8 + 2 * (count - 1 - k), "color": LAYERS[len(LAYERS) - count + k]}


def _speech(rows: Sequence[Row]) -> Any:
    """The probability of speech against time, by every variant."""
    title = "Pretrained LSTM (silero-vad): every program hears the same"
    drawing, (axes,) = sheet(title, height=3.2)
    for k, row in enumerate(rows):
        time = np.arange(len(row["probabilities"])) * FRAME / RATE
        axes.plot(time, row["probabilities"], label=row["program"], **_layer(k, len(rows)))
    axes.set(xlabel="time [s]", ylabel="probability of speech [0 to 1]", ylim=(-0.02, 1.02))
    legend(drawing)
    return drawing
