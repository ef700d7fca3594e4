"""The picture of the README: the gradient of a GRU by deeppcr, beside the best loop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.plots import (
    BLUE,
    RED,
    SMALL,
    Figures,
    legend,
    loops,
    plain_numbers,
    save,
    sheet,
    styled,
)
from experiments.bench.table import Row

ASIDE = 0.34  # between batch sizes in a column
COLORS = (BLUE, RED)  # of batch sizes


def draw(rows: Sequence[Row], path: Path) -> list[Path]:
    """A column for every GRU: its speedup as measured, filled, and as predicted, open.

    Args:
        rows: of the experiment `gradients`.
        path: of the picture.
    """
    return save(path, pictures(rows))


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """The picture, if "auto" was measured on the gradient of a GRU."""
    gradients = [
        row for row in rows if (row.get("kind"), row.get("direction")) == ("gru", "gradient")
    ]
    found: dict[Any, Row] = {}
    for row in gradients:  # of a case that two parts of the experiment measure, the first
        if row["program"] == "auto" and "speedup" in row:
            found.setdefault((row["w"], row["L"], row["batch"]), row)
    if not found:
        return {}
    title = "Gradient of a GRU: how many times faster deeppcr is than the best loop"
    drawing, (axes,) = sheet(title, height=4.2)
    columns = sorted({(units, steps) for units, steps, _ in found})
    batches = sorted({batch for *_, batch in found})
    for color, batch in zip(COLORS, batches, strict=False):
        axes.plot([], [], "o", ms=7, color=color, label=f"batch {batch}, measured")
        axes.plot([], [], "o", ms=7, color=color, mfc="none", label=f"batch {batch}, predicted")
        for (units, steps, of), row in found.items():
            if of == batch:
                alone = sum((units, steps, other) in found for other in batches) == 1
                aside = 0 if alone else ASIDE * (batches.index(batch) - (len(batches) - 1) / 2)
                _point(axes, columns.index((units, steps)) + aside, row, color)
    axes.axhline(1, color="black", linewidth=1.2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.45), high * 1.1)
    axes.axhspan(axes.get_ylim()[0], 1, color="0.94", zorder=0)
    said = f"below: slower than the fastest of {loops(gradients)}"
    axes.text(0.012, 0.03, said, transform=axes.transAxes, fontsize=SMALL + 0.5)
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.set_xticks(range(len(columns)), [f"{steps:,}" for _, steps in columns])
    axes.set(
        xlabel="steps T of the sequence (bold: units of the GRU)",
        ylabel="speedup [times]; up is better",
    )
    plain_numbers(axes.yaxis)
    _groups(axes, [units for units, _ in columns])
    axes.grid(visible=False, axis="x")
    legend(drawing)
    return {"headline": drawing}


def _point(axes: Any, x: float, row: Row, color: str) -> None:
    """Measured, filled, above a thick stem from 1; predicted, open, at a thin one."""
    axes.plot([x, x], [1, row["speedup"]], color=color, lw=3, alpha=0.35, solid_capstyle="butt")
    if "predicted speedup" in row:
        axes.plot(x, row["predicted speedup"], "o", ms=7, color=color, mfc="white", mew=1.5)
    axes.plot(x, row["speedup"], "o", ms=7, color=color)


def _groups(axes: Any, units: Sequence[int]) -> None:
    """The number of units below the columns that share it, and a line between groups."""
    for value in dict.fromkeys(units):
        first, last = units.index(value), len(units) - 1 - units[::-1].index(value)
        place = {
            "xy": ((first + last) / 2, 0),
            "xycoords": axes.get_xaxis_transform(),
            "ha": "center",
            "va": "top",
        }
        text = f"{value} unit" + "s" * (value > 1)
        axes.annotate(text, xytext=(0, -20), textcoords="offset points", fontweight="bold", **place)
        if last + 1 < len(units):
            axes.axvline(last + 0.5, color="0.85", lw=0.8, zorder=0)
    axes.xaxis.labelpad = 18
