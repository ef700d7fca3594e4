"""The pictures of `python -m experiments resnet`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.bench.plots import (
    COLORS,
    GREYS,
    SMALL,
    Figures,
    bars,
    legend,
    plain_numbers,
    series,
    sheet,
    styled,
    values_as_ticks,
)
from experiments.bench.programs import SCAN
from experiments.bench.table import Row
from experiments.resnet.variants import VARIANTS

LOOKS = {SCAN: "black"} | dict(zip(VARIANTS, COLORS, strict=False))
MARKERS = "osD^vP*"  # of variants
NAMED = "by what linearises the forward pass / the adjoint"
SMALLEST = 1e-9  # difference of losses that is drawn
WINDOW = 15  # steps of the running mean


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Times of a training step by L; losses; accuracy; errors of what is stopped early."""
    times, training, approximate = (
        [row for row in rows if row["part"] == part]
        for part in ("times", "training", "approximate")
    )
    drawn = {
        "times": (_times, times),
        "losses": (_losses, training),
        "accuracy": (_accuracy, [row for row in (*training, *approximate) if "accuracy" in row]),
        "errors": (_errors, approximate),
    }
    return {topic: panel(found) for topic, (panel, found) in drawn.items() if found}


def _times(rows: Sequence[Row]) -> Any:
    """A line for every program, black and grey for loops; beside it the same as predicted."""
    keys = {"measured": "ms", "predicted": "predicted ms"}
    keys = {name: key for name, key in keys.items() if any(key in row for row in rows)}
    title = f"Training step of a residual network of {rows[0]['w']} units (down is better)"
    drawing, panels = sheet(title, max(1, len(keys)), height=4.6, sharey=True)
    names = list(dict.fromkeys(row["program"] for row in rows))
    loops = [row["program"] for row in rows if row["baseline"] and row["L"] == rows[0]["L"]]
    others = [name for name in names if name not in loops]
    for axes, (said, key) in zip(panels, keys.items(), strict=True):
        for name in [*loops, *others]:
            mine = [row for row in rows if row["program"] == name]
            if name in loops:
                color, style = GREYS[loops.index(name) % len(GREYS)], "x--"
            else:
                color = LOOKS.get(name, "0.5")
                style = f"{MARKERS[others.index(name) % len(MARKERS)]}-"
            series(axes, mine, "L", key, style, label=name, lw=1.3, color=color)
        axes.set(xscale="log", yscale="log", xlabel="residual blocks L", title=said)
        values_as_ticks(axes.xaxis, sorted({row["L"] for row in rows}))
        plain_numbers(axes.yaxis)
    panels[0].set_ylabel("time of a training step [ms]")
    legend(drawing, 4, fontsize=SMALL, title=NAMED)
    return drawing


def _losses(rows: Sequence[Row]) -> Any:
    """Losses, wide below and thin on top, and how far each is from that of the first program."""
    title = f"Training through {rows[0]['L']} residual blocks: every program learns the same"
    drawing, panels = sheet(title, 1 + (len(rows) > 1), height=4.0)
    for row, width in zip(rows, np.linspace(7, 1, len(rows)), strict=True):
        window = min(WINDOW, len(row["losses"]))
        smooth = np.convolve(row["losses"], np.ones(window) / window, mode="valid")
        color = LOOKS.get(row["program"], "0.5")
        panels[0].plot(smooth, color=color, linewidth=width, label=row["program"])
    panels[0].set(yscale="log", xlabel="training step", ylabel="loss, running mean [nats]")
    panels[0].set_title("losses lie on each other")
    plain_numbers(panels[0].yaxis)
    for row in rows[1:]:
        steps = min(len(row["losses"]), len(rows[0]["losses"]))
        apart = np.abs(np.subtract(row["losses"][:steps], rows[0]["losses"][:steps]))
        color = LOOKS.get(row["program"], "0.5")
        panels[1].plot(np.maximum(apart, SMALLEST), ".", color=color, markersize=2)
        panels[1].set(yscale="log", xlabel="training step")
        panels[1].set_ylabel(f"difference [nats, 0 drawn at {SMALLEST:g}]")
        panels[1].set_ylim(SMALLEST / 2, max(1e-3, 2 * panels[1].get_ylim()[1]))
        panels[1].set_title(f"difference from the loss of {rows[0]['program']}")
    legend(drawing, 4, fontsize=SMALL, title=NAMED)
    return drawing


def _accuracy(rows: Sequence[Row]) -> Any:
    """Bars: converged programs in colour, those that were stopped early in grey."""
    title = "Held-out digits right after training (grey: stopped after k iterations)"
    drawing, (axes,) = sheet(title, height=0.9 + 0.24 * len(rows))
    names = [row["program"].replace("approximate: ", "") for row in rows]
    shares = [100 * row["accuracy"] for row in rows]
    bars(axes, names, shares, [LOOKS.get(row["program"], "0.75") for row in rows])
    axes.set(xlabel="digits right [%]", xlim=(0, 108))
    return drawing


def _errors(rows: Sequence[Row]) -> Any:
    """Errors of gradients and residuals against the number of iterations."""
    drawing, (axes,) = sheet("Gradient, if stopped after k iterations (down is better)", height=3.6)
    for name in dict.fromkeys(row["variant"] for row in rows):
        found = [row for row in rows if row["variant"] == name]
        for key, style in (("gradient error", "o-"), ("residual", "o:")):
            look = {"color": LOOKS.get(name, "0.5"), "label": f"{name}: {key}"}
            series(axes, found, "k", key, style, **look)
    axes.set(yscale="log", xlabel="iterations k of Newton's method")
    axes.set_ylabel("error relative to backpropagation\n[ratio]")
    values_as_ticks(axes.xaxis, sorted({row["k"] for row in rows}))
    plain_numbers(axes.yaxis)
    legend(drawing, 2)
    return drawing
