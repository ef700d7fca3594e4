"""The pictures of `python -m experiments compile_time`."""

from collections.abc import Sequence
from typing import Any

from experiments.bench.plots import (
    BLUE,
    GREYS,
    RED,
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

OURS = {"deeppcr, list": (BLUE, "o"), "deeppcr, stack": (RED, "s")}


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Seconds to compile and times of a call by the number of layers; training loops."""
    layers, training = (
        [row for row in rows if row["part"] == part] for part in ("layers", "training")
    )
    drawn = {"layers": (_layers, layers), "training": (_training, training)}
    return {topic: panel(found) for topic, (panel, found) in drawn.items() if found}


def _layers(rows: Sequence[Row]) -> Any:
    """A line for each program, those of others in black and grey."""
    title = "Gradient through equal layers: compile time and run time (down is better)"
    drawing, panels = sheet(title, 2, height=3.9)
    names = list(dict.fromkeys(row["program"] for row in rows))
    others = [name for name in names if name not in OURS]
    keys = {"seconds": ("trace and compile", "time [s]"), "ms": ("a call", "time [ms]")}
    for axes, (key, (what, unit)) in zip(panels, keys.items(), strict=True):
        for name in [*others, *(name for name in names if name in OURS)]:
            mine = [row for row in rows if row["program"] == name]
            if name in OURS:
                (color, marker), dash = OURS[name], "-"
            else:
                number = others.index(name)
                color, marker, dash = GREYS[number % len(GREYS)], "xv^<>"[number % 5], "--"
            series(axes, mine, "L", key, marker + dash, color=color, label=name)
        axes.set(xscale="log", yscale="log", xlabel="layers", ylabel=unit, title=what)
        values_as_ticks(axes.xaxis, sorted({row["L"] for row in rows}))
        plain_numbers(axes.yaxis)
    legend(drawing, 3)
    return drawing


def _training(rows: Sequence[Row]) -> Any:
    """Bars for each way to write a training loop, those without deeppcr in grey."""
    first = rows[0]
    of = f"{first['modules']} modules for {first['steps']} steps"
    title = f"Training {of} (less is better; grey: without deeppcr)"
    keys = {"seconds": ("trace and compile", "time [s]"), "us a step": ("a step", "time [us]")}
    drawing, panels = sheet(title, 2, height=1.1 + 0.26 * len(rows))
    colors = ["0.6" if row["baseline"] else BLUE for row in rows]
    for axes, (key, (what, unit)) in zip(panels, keys.items(), strict=True):
        names = [row["program"] if axes is panels[0] else "" for row in rows]
        bars(axes, names, [row[key] for row in rows], colors)
        axes.set(title=what, xlabel=unit)
    return drawing
