"""The pictures of the experiments that are a single file, as `experiments.bench.plots` has them."""

from collections.abc import Sequence

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
def digits(rows: Sequence[Row]) -> Figures:
    """Of `python -m experiments digits`: losses on each other, and the time of a training step.

    Args:
        rows: of each program, with the "losses" of its training, or with the "ms" of a step.
    """
    trained, timed = ([row for row in rows if key in row] for key in ("losses", "ms"))
    if not trained and not timed:
        return {}
    title = "Digits: the same training by every program"
    drawing, panels = sheet(title, bool(trained) + bool(timed), height=3.6)
    colors = dict(zip(dict.fromkeys(row["program"] for row in rows), COLORS, strict=False))
    for row, width in zip(trained, np.linspace(6, 1, len(trained)), strict=True):
        window = min(WINDOW, len(row["losses"]))
        smooth = np.convolve(row["losses"], np.ones(window) / window, mode="valid")
        panels[0].plot(smooth, label=row["program"], lw=width, color=colors[row["program"]])
        panels[0].set(yscale="log", xlabel="training step", ylabel="loss, running mean [nats]")
        panels[0].set_title("losses lie on each other")
    if timed:
        names = ["" if trained else row["program"] for row in timed]
        bars(
            panels[-1],
            names,
            [row["ms"] for row in timed],
            [colors[row["program"]] for row in timed],
        )
        panels[-1].set(title="a training step (less is better)", xlabel="time [ms]")
    legend(drawing, 2)
    return {"digits": drawing}


SINGLE = {"calls": calls, "digits": digits}  # by experiment
