"""The pictures of `python -m experiments sharding`: scaling over the chain."""

import re
from collections.abc import Sequence
from typing import Any

from experiments.bench.plots import (
    BLUE,
    Figures,
    bars,
    legend,
    plain_numbers,
    series,
    sheet,
    styled,
    values_as_ticks,
)
from experiments.bench.table import Row

MEASURED, PREDICTED = "measured scaling", "scaling on paper"
LINES = {  # label, colour, line
    "lax.scan ms": ("lax.scan, one device", "black", "x--"),
    "batch ms": ("lax.scan, batch over the devices", "0.6", "v--"),
    "ms": ("Newton, chain over the devices", BLUE, "o-"),
    "predicted ms": ("Newton, chain over the devices, predicted", BLUE, "o:"),
}
KINDS = {"strong": "same chain", "weak": "longer chain"}


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Times against the number of devices: on this machine, and predicted for each model.

    If scaling was not measured: the times of what was.
    """
    found: Figures = {}
    if measured := [row for row in rows if row["part"] == MEASURED]:
        title = "Training step over the devices of this machine (down is better)"
        found["measured"] = _scaling(title, measured, "devices (on a CPU they share its cores)")
    predicted = [row for row in rows if row["part"] == PREDICTED]
    for device in dict.fromkeys(row["on paper"] for row in predicted):
        title = f"Training step over devices, predicted for {device} (down is better)"
        mine = [row for row in predicted if row["on paper"] == device]
        found[re.sub(r"\W+", "_", device.lower())] = _scaling(title, mine, "devices")
    if not found and (timed := [row for row in rows if "ms" in row]):
        found["times"] = _times(timed)
    return found


def _times(rows: Sequence[Row]) -> Any:
    """A bar for each row."""
    title = "Programs over several devices (less is better)"
    drawing, (axes,) = sheet(title, height=1.1 + 0.26 * len(rows))
    axes.set_xscale("log")
    bars(axes, [str(row["row"]) for row in rows], [row["ms"] for row in rows], [BLUE] * len(rows))
    axes.set_xlim(right=3 * max(row["ms"] for row in rows))  # room for the numbers
    axes.set_xlabel("time [ms]")
    return drawing


def _scaling(title: str, rows: Sequence[Row], named: str) -> Any:
    """Strong scaling left, weak scaling right."""
    kinds = [kind for kind in KINDS if any(row["scaling"] == kind for row in rows)]
    drawing, panels = sheet(title, len(kinds), height=3.8, sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        mine = [row for row in rows if row["scaling"] == kind]
        for key, (label, color, line) in LINES.items():
            fill = "white" if key == "predicted ms" else color
            look = {"color": color, "markerfacecolor": fill, "label": label}
            series(axes, mine, "devices", key, line, **look)
        lengths = sorted({row["L"] for row in mine})
        long = " to ".join(f"{length:,}" for length in dict.fromkeys([lengths[0], lengths[-1]]))
        axes.set(xscale="log", yscale="log", xlabel=named)
        axes.set_title(f"{KINDS[kind]}, L = {long}")
        devices = sorted({row["devices"] for row in mine})
        values_as_ticks(axes.xaxis, devices[:: 1 + len(devices) // 7])
        plain_numbers(axes.yaxis)
    panels[0].set_ylabel("time of a training step [ms]")
    legend(drawing, 2)
    return drawing
