"""The figure of `python -m experiments resnet`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.plots import figure, halves, series
from experiments.bench.programs import SCAN
from experiments.bench.table import Row
from experiments.resnet.variants import VARIANTS

COLORS = {SCAN: "black"} | {name: f"C{k}" for k, name in enumerate(VARIANTS)}
SMALLEST = 1e-9  # difference of losses that is drawn
WINDOW = 15  # steps of the running mean


def draw(rows: Sequence[Row], path: Path) -> None:
    """Losses, their distances, times of a step by L, accuracy, errors of what is stopped early."""
    times, training, approximate = (
        [row for row in rows if row["part"] == part]
        for part in ("times", "training", "approximate")
    )
    with figure(path, columns=3, height=6.8) as columns:
        (losses, differences), (right, errors) = halves(columns[0]), halves(columns[2])
        panels = [
            (_losses, losses, training),
            (_differences, differences, training),
            (_times, columns[1], times),
            (_accuracy, right, [row for row in (*training, *approximate) if "accuracy" in row]),
            (_errors, errors, approximate),
        ]
        for panel, axes, found in panels:
            if found:
                panel(axes, found)
            else:
                axes.set_axis_off()


def _losses(axes: Any, rows: Sequence[Row]) -> None:
    """Wide below, thin on top: curves that coincide can still be told apart."""
    for row, width in zip(rows, np.linspace(6, 1, len(rows)), strict=True):
        window = min(WINDOW, len(row["losses"]))
        smooth = np.convolve(row["losses"], np.ones(window) / window, mode="valid")
        axes.plot(smooth, color=COLORS[row["program"]], linewidth=width, label=row["program"])
    title = f"training loss (running mean), L = {rows[0]['L']}"
    axes.set(yscale="log", xlabel="training step", title=title)
    axes.legend(fontsize=6.5)


def _differences(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows[1:]:
        steps = min(len(row["losses"]), len(rows[0]["losses"]))
        apart = np.abs(np.subtract(row["losses"][:steps], rows[0]["losses"][:steps]))
        axes.plot(np.maximum(apart, SMALLEST), ".", color=COLORS[row["program"]], markersize=2)
    axes.set(yscale="log", ylim=(SMALLEST / 2, 1), xlabel="training step")
    axes.set_title(f"distance from the loss by {rows[0]['program']} (0 as {SMALLEST:g})")


def _times(axes: Any, rows: Sequence[Row]) -> None:
    """A line for every program, dashed for what was predicted.

    Black and grey for the sequential ones.
    """
    loops = list(dict.fromkeys(row["program"] for row in rows if row["baseline"]))
    for name in dict.fromkeys(row["program"] for row in rows):
        found = [row for row in rows if row["program"] == name]
        is_loop = name in loops
        color = str(0.75 * loops.index(name) / len(loops)) if is_loop else COLORS[name]
        look = {"markersize": 4, "color": color, "linewidth": 1.3}
        series(axes, found, "L", "ms", "s-" if is_loop else "o-", label=name, **look)
        series(axes, found, "L", "predicted ms", ".--", **look)
    axes.plot([], [], "--", color="0.5", label="predicted")
    lengths = sorted({row["L"] for row in rows})
    axes.set(xscale="log", yscale="log", xlabel="L, residual blocks", title="a training step [ms]")
    axes.set_xticks(lengths, lengths)
    axes.set_xticks([], minor=True)
    axes.set_ylim(top=8 * axes.get_ylim()[1])  # room for the legend
    axes.legend(fontsize=6.5, ncols=2, loc="upper left")


def _accuracy(axes: Any, rows: Sequence[Row]) -> None:
    names = [row["program"].replace("approximate: ", "") for row in rows]
    shares = [100 * row["accuracy"] for row in rows]
    colors = [COLORS.get(row["program"], "0.75") for row in rows]  # grey: approximate
    axes.barh(range(len(rows)), shares, color=colors)
    for place, share in enumerate(shares):
        axes.text(share, place, f" {share:.1f}", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 110)
    axes.grid(visible=False)
    axes.set_title("accuracy, held back digits [%]")


def _errors(axes: Any, rows: Sequence[Row]) -> None:
    for name in dict.fromkeys(row["variant"] for row in rows):
        found = [row for row in rows if row["variant"] == name]
        for key, dash in (("gradient error", "o-"), ("residual", "o:")):
            label = f"{name}: {key}"
            series(axes, found, "k", key, dash, markersize=4, color=COLORS[name], label=label)
    title = "error of the approximate gradient"
    axes.set(yscale="log", xlabel="Newton iterations, and no more", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(top=100 * axes.get_ylim()[1])  # room for the legend
    axes.legend(fontsize=6.5)
