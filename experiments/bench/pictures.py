"""The pictures of the experiments that are a single file, as `experiments.bench.plots` has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.bench.plots import (
    BLUE,
    COLORS,
    Figures,
    bars,
    legend,
    plain_numbers,
    sheet,
    styled,
)
from experiments.bench.table import Row

WINDOW = 25  # steps of the running mean


@styled
def calls(rows: Sequence[Row]) -> Figures:
    """Of `python -m experiments calls`: times of eager calls, of the second and of later ones."""
    if not rows:
        return {}
    keys = {"second ms": "the second call", "later ms": "later calls"}
    drawing, panels = sheet(
        "Eager calls (less is better; grey: jax)", 2, height=1.1 + 0.26 * len(rows)
    )
    colors = [BLUE if row["program"].startswith("deeppcr") else "0.6" for row in rows]
    for axes, (key, title) in zip(panels, keys.items(), strict=True):
        names = [f"{row['entry']}: {row['program']}" if axes is panels[0] else "" for row in rows]
        axes.set_xscale("log")
        bars(axes, names, [row[key] for row in rows], colors)
        axes.set_xlim(right=6 * max(row[key] for row in rows))  # room for the numbers
        axes.set(title=title, xlabel="time [ms]")
        plain_numbers(axes.xaxis)
    return {"calls": drawing}


@styled
def digits(rows: Sequence[Row], losses: Mapping[str, Sequence[float]]) -> Figures:
    """Of `python -m experiments digits`: losses on each other, and the time of a training step.

    Args:
        rows: one for each run.
        losses: of every training step, by run.
    """
    if not rows:
        return {}
    title = "Digits: the same training by every program"
    drawing, (curves, times) = sheet(title, 2, height=3.6)
    for (name, values), width in zip(losses.items(), np.linspace(6, 1, len(losses)), strict=True):
        window = min(WINDOW, len(values))
        smooth = np.convolve(values, np.ones(window) / window, mode="valid")
        curves.plot(smooth, label=name, linewidth=width)
    curves.set(yscale="log", xlabel="training step", ylabel="loss, running mean [nats]")
    curves.set_title("losses lie on each other")
    colors: list[Any] = [COLORS[k % len(COLORS)] for k in range(len(rows))]
    bars(times, ["" for _ in rows], [row["ms"] for row in rows], colors)
    times.set(title="a training step (less is better)", xlabel="time [ms]")
    legend(drawing, 2)
    return {"digits": drawing}
