"""The pictures of `python -m experiments prediction`."""

from collections.abc import Sequence
from typing import Any

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

MARKERS = "osD^vP*"  # of kinds of chains


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Predicted against measured times; the time that the analysis itself takes."""
    times = [row for row in rows if row["part"] == "times" and {"ms", "predicted ms"} <= row.keys()]
    analysis = [row for row in rows if row["part"] == "analysis"]
    drawn = {"times": (_times, times), "analysis": (_analysis, analysis)}
    return {topic: panel(found) for topic, (panel, found) in drawn.items() if found}


def _times(rows: Sequence[Row]) -> Any:
    """A marker for each program, a colour for each kind of chain."""
    title = "Time of a call, predicted and measured (on the line is best)"
    drawing, (axes,) = sheet(title, height=4.6)
    kinds = dict.fromkeys(row["chain"].partition(" ")[0] for row in rows)
    for kind, color, marker in zip(kinds, COLORS, MARKERS, strict=False):
        found = [row for row in rows if row["chain"].startswith(kind)]
        x, y = ([row[key] for row in found] for key in ("ms", "predicted ms"))
        axes.plot(x, y, marker, color=color, label=kind, alpha=0.8)
    values = [row[key] for row in rows for key in ("ms", "predicted ms")]
    ends = [min(values) / 1.3, max(values) * 1.3]
    axes.plot(ends, ends, color="black", linewidth=1, zorder=0, label="equal")
    looks = {"color": "0.6", "linewidth": 1, "ls": "--", "zorder": 0}
    axes.plot(ends, [2 * end for end in ends], **looks, label="twice and half of it")
    axes.plot(ends, [end / 2 for end in ends], **looks)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="measured [ms]",
        ylabel="predicted [ms]",
    )
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    legend(drawing, 6)
    return drawing


def _analysis(rows: Sequence[Row]) -> Any:
    """Bars for each program: seconds to trace and to analyse."""
    title = "depth of a program: time to analyse it (less is better)"
    drawing, panels = sheet(title, 2, height=1.1 + 0.27 * len(rows))
    keys = {"trace s": ("0.6", "jax traces it"), "analyse s": (BLUE, "depth analyses it")}
    for axes, (key, (color, said)) in zip(panels, keys.items(), strict=True):
        names = [row["program"] if axes is panels[0] else "" for row in rows]
        bars(axes, names, [row[key] for row in rows], [color] * len(rows))
        axes.set(title=said, xlabel="time [s]")
    return drawing
