"""The picture of `python -m experiments field`: iterations against growth rate, and against T."""

from collections.abc import Sequence

import numpy as np

from experiments.bench.plots import (
    BLUE,
    BROWN,
    GREEN,
    PINK,
    RED,
    SKY,
    YELLOW,
    Figures,
    legend,
    plain_numbers,
    series,
    sheet,
    styled,
    values_as_ticks,
)
from experiments.bench.table import Row

# Of growth rates in the second panel, from the smallest to the largest.
SHADES = (SKY, "0.6", PINK, BROWN, "0.3")


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Of predictable chains and of chaotic ones; plain Newton with exact Jacobians."""
    rows = [row for row in rows if row.get("part") == "predictability"]
    if not rows:
        return {}
    drawing, (left, right) = sheet(
        "Newton's method on a mean-field RNN (fewer is better)",
        2,
        height=3.9,
        sharey=True,
    )
    lengths = sorted({row["L"] for row in rows})
    for length, color, marker in zip(lengths, (YELLOW, GREEN, RED, BLUE), "o^sD", strict=False):
        mine = [row for row in rows if row["L"] == length]
        look = {"color": color, "label": f"T = {length:,}"}
        series(left, mine, "growth rate", "iterations", f"{marker}-", **look)
    left.axvline(0, color="black", linewidth=1)
    left.set(
        yscale="log",
        title="by growth rate",
        xlabel="largest Lyapunov exponent [nats per step]",
        ylabel="iterations",
    )
    longest = sorted((row for row in rows if row["L"] == lengths[-1]), key=_rate)
    some = np.unique(np.linspace(0, len(longest) - 1, len(SHADES)).round().astype(int))
    for index, color, marker in zip(some, SHADES, "vPX*p", strict=False):
        mine = [row for row in rows if row["gain"] == longest[index]["gain"]]
        look = {"color": color, "label": f"rate {_rate(longest[index]):+.2f}"}
        series(right, mine, "L", "iterations", f"{marker}-", **look)
    right.plot(lengths, lengths, "--", color="black", lw=1, label="iterations = T")
    right.set(xscale="log", title="by length, at some of these rates", xlabel="steps T")
    values_as_ticks(right.xaxis, lengths)
    plain_numbers(left.yaxis)
    legend(drawing, 5)
    return {"predictability": drawing}


def _rate(row: Row) -> float:
    return float(row["growth rate"])
