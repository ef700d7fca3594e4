"""The figure of `python -m experiments gradients`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.plots import decades, figure, parts, series
from experiments.bench.summary import cases
from experiments.bench.table import Row
from experiments.gradients.network import ADJOINTS
from experiments.gradients.silero import FRAME, RATE

KINDS = ("gru", "lstm")
DASHES = ("-", "--", ":", "-.")  # of curves that lie on top of each other


def draw(rows: Sequence[Row], path: Path) -> None:
    """Speedups of gradients left, of forward passes right.

    Adjoints by case, GRU and LSTM against T. Below: losses, speech.
    """
    by_part = {
        part: [row for row in rows if row["part"] == part]
        for part in ("adjoints", "grid", "training", "heard")
    }
    with figure(path, columns=2, height=16) as columns:
        last = []
        for direction, column in zip(("gradient", "forward"), columns, strict=True):
            adjoints, *grid, end = parts(column, 4)
            last.append(end)
            _adjoints(adjoints, by_part["adjoints"], direction)
            for kind, axes in zip(KINDS, grid, strict=True):
                wanted = (kind, direction, 1)
                keys = ("kind", "direction", "batch")
                found = [row for row in by_part["grid"] if tuple(row[k] for k in keys) == wanted]
                _speedups(axes, best_parallel(found))
                what = "forward" if direction == "forward" else "forward and gradient"
                axes.set_title(f"{kind.upper()}, {what}: speedup over the best lax.scan")
        _losses(last[0], by_part["training"])
        _heard(last[1], by_part["heard"])


def _adjoints(axes: Any, rows: Sequence[Row], direction: str) -> None:
    """Speedups over the fastest loop by case: filled as measured, hollow as predicted."""
    found = [one for one in cases(rows) if one[0]["direction"] == direction]
    if not found:
        _say(axes, "not measured")
        return
    for number, name in enumerate(ADJOINTS[direction]):
        color = f"C{number}"
        for y, (_, group) in enumerate(found):
            points = [row | {"y": y + 0.15 * number} for row in group if row["program"] == name]
            hollow = {"color": color, "markerfacecolor": "none"}
            series(axes, points, "predicted speedup", "y", "o", ms=5, **hollow)
            series(axes, points, "speedup", "y", "o", ms=5, color=color)
        axes.plot([], [], "o", ms=5, color=color, label=name)
    axes.axvline(1, color="black", linewidth=1)
    names = [f"T = {of['L']}, n = {of['w']}, batch {of['batch']}" for of, _ in found]
    axes.set_yticks(range(len(found)), names, fontsize=7)
    axes.set_ylim(len(found) - 0.3, -0.3)
    axes.set(title=f"GRU, {direction}: speedup over the fastest loop\n\n", xscale="log")
    decades(axes, "x")
    axes.legend(fontsize=7, ncols=2, loc="lower left", bbox_to_anchor=(-0.03, 1))


def best_parallel(rows: Sequence[Row]) -> list[Row]:
    """For every size the fastest program that is right and parallel, wholly or in its adjoint."""
    best: dict[tuple[int, int], Row] = {}
    for row in rows:
        size = row["L"], row["w"]
        if not row["baseline"] and row["program"] != "auto" and "speedup" in row:
            best[size] = max(best.get(size, row), row, key=lambda row: row["speedup"])
    return [best[size] for size in sorted(best)]


def _speedups(axes: Any, rows: Sequence[Row]) -> None:
    """A colour for every number of units: solid as measured, dashed as predicted."""
    if not rows:
        _say(axes, "not measured")
        return
    for color, units in enumerate(sorted({row["w"] for row in rows})):
        mine = [row for row in rows if row["w"] == units]
        look = {"ms": 4, "color": f"C{color}"}
        label = f"{units} unit" + "s" * (units > 1)
        series(axes, mine, "L", "speedup", "o-", label=label, **look)
        series(axes, mine, "L", "predicted speedup", "x--", lw=1, **look)
    axes.axhline(1, color="black", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="T")
    decades(axes, "y")
    axes.plot([], [], "x--", lw=1, ms=4, color="0.4", label="predicted")
    axes.legend(fontsize=7)


def _losses(axes: Any, rows: Sequence[Row]) -> None:
    """A curve for every way to train; of the wider ones, the narrower are drawn on top."""
    if not rows:
        _say(axes, "not measured")
        return
    for k, row in enumerate(rows):
        label = f"{row['program']}: {row['accuracy']:.0%} right, alike for {row['alike for']} steps"
        look = {"lw": len(rows) - k, "color": f"C{k}", "alpha": 0.8}
        axes.plot(row["losses"], DASHES[k % len(DASHES)], label=label, **look)
    first = rows[0]
    axes.set_xlabel("step")
    axes.set_title(f"loss of a GRU of {first['w']} units, {first['kind']}, T = {first['L']}")
    axes.legend(fontsize=7)


def _heard(axes: Any, rows: Sequence[Row]) -> None:
    """The probability of speech against time, by every variant."""
    if not rows:
        _say(axes, "not measured")
        return
    for k, row in enumerate(rows):
        time = np.arange(len(row["probabilities"])) * FRAME / RATE
        look = {"lw": 0.8 + 1.4 * (len(rows) - 1 - k), "color": f"C{k}", "label": row["program"]}
        axes.plot(time, row["probabilities"], DASHES[k % len(DASHES)], **look)
    axes.set(xlabel="s", ylim=(-0.02, 1.02), title="silero-vad: probability of speech")
    axes.legend(fontsize=7, frameon=True, framealpha=0.9, loc="lower center")


def _say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="0.5")
