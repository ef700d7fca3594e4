"""The figure of `python -m experiments sharding`: scaling over the chain, measured and on paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.plots import figure, halves, series
from experiments.bench.table import Row

LINES = {  # label, colour, line
    "lax.scan ms": ("lax.scan, one device", "C0", "o-"),
    "batch ms": ("lax.scan, batch over the devices", "C1", "o-"),
    "ms": ("Newton, chain over the devices", "C2", "o-"),
    "predicted ms": ("Newton, chain, predicted", "C2", "o--"),
}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Times against the number of devices.

    A column for this machine and each model, strong scaling above weak.
    """
    measured = [row for row in rows if row["part"] == "measured scaling"]
    columns = {"this machine": measured} if measured else {}
    for row in rows:
        if row["part"] == "scaling on paper":
            columns.setdefault(f"on paper, {row['on paper']}", []).append(row)
    with figure(path, columns=len(columns), height=6.4) as panels:
        for (name, found), panel in zip(columns.items(), panels, strict=True):
            for kind, axes in zip(("strong", "weak"), halves(panel), strict=True):
                _lines(axes, [row for row in found if row["scaling"] == kind], f"{name}: {kind}")


def has_figure(rows: Sequence[Row]) -> bool:
    """Whether there is anything to draw: scaling alone has a figure."""
    return any(row["part"] in ("measured scaling", "scaling on paper") for row in rows)


def _lines(axes: Any, rows: Sequence[Row], title: str) -> None:
    for key, (label, colour, line) in LINES.items():
        if any(key in row for row in rows):
            series(axes, rows, "devices", key, line, ms=3, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("devices")
    axes.set_ylabel("training step [ms]")
    if lengths := sorted({row["L"] for row in rows}):
        title += f", L = {lengths[0]}" + (f" to {lengths[-1]}" if len(lengths) > 1 else "")
        axes.legend(fontsize=7, frameon=True, framealpha=0.9, edgecolor="none")
    axes.set_title(title)
