"""The figure of `python -m experiments rnn`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.plots import figure, halves
from experiments.rnn_parts.silero import FRAME, RATE

Row = dict[str, Any]

KINDS = ("gru", "lstm")
DASHES = ("-", "--", ":", "-.")  # of curves that lie on top of each other


def draw(rows: Sequence[Row], path: Path) -> None:
    """Speedups against T by units, GRU above and LSTM below, forward and gradient; losses, and what a speech detector hears."""
    grid, training, heard = (
        [row for row in rows if row["part"] == part] for part in ("grid", "training", "heard")
    )
    with figure(path, columns=3, height=6.4) as columns:
        for direction, axes in zip(("forward", "gradient"), columns, strict=False):
            for kind, half in zip(KINDS, halves(axes), strict=True):
                found = [
                    row
                    for row in grid
                    if (row["kind"], row["direction"], row["batch"]) == (kind, direction, 1)
                ]
                _speedups(half, best_parallel(found))
                what = "forward" if direction == "forward" else "forward and gradient"
                half.set_title(f"{kind.upper()}, {what}: speedup over the best lax.scan")
        losses, probabilities = halves(columns[2])
        _losses(losses, training)
        _heard(probabilities, heard)


def best_parallel(rows: Sequence[Row]) -> list[Row]:
    """For every T and number of units the fastest program that is parallel, wholly or in its adjoint, and right."""
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
        line = [row for row in rows if row["w"] == units]
        lengths = [row["L"] for row in line]
        label = f"{units} unit" + "s" * (units > 1)
        axes.plot(
            lengths, [row["speedup"] for row in line], "o-", ms=4, color=f"C{color}", label=label
        )
        predicted = [row.get("predicted speedup", np.nan) for row in line]
        axes.plot(lengths, predicted, "x--", ms=4, lw=1, color=f"C{color}")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(
        10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high))
    )  # else no power of ten may be seen
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("T")
    axes.plot([], [], "x--", lw=1, ms=4, color="0.4", label="predicted")
    axes.legend(fontsize=7)


def _losses(axes: Any, rows: Sequence[Row]) -> None:
    """A curve for every way to train; of the wider ones, the narrower are drawn on top."""
    for place, row in enumerate(rows):
        width = 1 + (len(rows) - 1 - place)
        label = f"{row['program']}: {row['accuracy']:.0%} right, alike for {row['alike for']} steps"
        axes.plot(
            row["losses"],
            DASHES[place % len(DASHES)],
            lw=width,
            color=f"C{place}",
            alpha=0.8,
            label=label,
        )
    axes.set_xlabel("step")
    axes.set_title(
        "loss of a GRU"
        + (f" of {rows[0]['w']} units, {rows[0]['kind']}, T = {rows[0]['L']}" if rows else "")
    )
    if rows:
        axes.legend(fontsize=7)
    else:
        _say(axes, "not measured")


def _heard(axes: Any, rows: Sequence[Row]) -> None:
    """The probability of speech against time, by every way."""
    for place, row in enumerate(rows):
        time = np.arange(len(row["probabilities"])) * FRAME / RATE
        width = 0.8 + 1.4 * (len(rows) - 1 - place)
        axes.plot(
            time,
            row["probabilities"],
            DASHES[place % len(DASHES)],
            lw=width,
            color=f"C{place}",
            label=row["program"],
        )
    axes.set_xlabel("s")
    axes.set_ylim(-0.02, 1.02)
    axes.set_title("silero-vad: probability of speech")
    if rows:
        axes.legend(fontsize=7, frameon=True, framealpha=0.9, loc="lower center")
    else:
        _say(axes, "not measured")


def _say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="0.5")
