"""The pictures of `python -m experiments mlp`.

Maps of speedups over depth and width, with the line of break-even, and times.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from experiments.bench.plots import (
    BLUE,
    SMALL,
    Figures,
    grid,
    legend,
    loops,
    plain_numbers,
    series,
    sheet,
    speedup_maps,
    styled,
    values_as_ticks,
)
from experiments.bench.summary import best, is_benchmark
from experiments.bench.table import Row

DIRECTIONS = ("gradient", "forward", "backward")  # the best picture first
NAMES = {"gradient": "Gradient", "forward": "Forward pass", "backward": "Backward pass"}
MARKERS = "osD^v*"  # of widths


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """A map of speedups for each direction; times of the best loop and the best parallel program.

    Of several activations and batches those that have most cells are drawn.
    """
    baseline = loops([row for row in rows if is_benchmark(row)])
    rows = list(best(rows))
    if not rows:
        return {}
    kind, batch = Counter((row["kind"], row["batch"]) for row in rows).most_common(1)[0][0]
    rows = [row for row in rows if (row["kind"], row["batch"]) == (kind, batch)]
    found: Figures = {}
    for direction in DIRECTIONS:
        mine = [row for row in rows if row["direction"] == direction]
        keys = {"measured": "speedup", "predicted": "predicted speedup"}
        maps = {
            name: grid(mine, key, "L", "w")
            for name, key in keys.items()
            if any(key in row for row in mine)
        }
        if maps:
            _, lengths, widths = next(iter(maps.values()))
            found[direction] = speedup_maps(
                f"{NAMES[direction]} of an MLP ({kind}, batch {batch}): speedup over the best loop",
                {name: values for name, (values, _, _) in maps.items()},
                (lengths, widths),
                ("layers", "units of a layer"),
                f"best parallel program over the fastest of {baseline}",
            )
    title = f"MLP ({kind}, batch {batch}): time of a call (down is better)"
    found["times"] = _times(rows, title, baseline)
    return found


def _times(rows: Sequence[Row], title: str, baseline: str) -> Any:
    """A line for each width: the best loop black, the best parallel program blue."""
    directions = [
        name for name in ("forward", "gradient") if any(row["direction"] == name for row in rows)
    ]
    directions = directions or [rows[0]["direction"]]
    drawing, panels = sheet(title, len(directions), height=3.6, sharey=True)
    widths = sorted({row["w"] for row in rows})
    for axes, direction in zip(panels, directions, strict=True):
        for width, marker in zip(widths, MARKERS, strict=False):
            mine = [row for row in rows if (row["w"], row["direction"]) == (width, direction)]
            for key, color in (("sequential ms", "black"), ("parallel ms", BLUE)):
                series(axes, mine, "L", key, f"{marker}-", color=color)
            axes.plot([], [], marker, color="0.4", label=f"{width} units")
        axes.set(xscale="log", yscale="log", title=NAMES.get(direction, direction), xlabel="layers")
        values_as_ticks(axes.xaxis, sorted({row["L"] for row in rows}))
        plain_numbers(axes.yaxis)
    panels[0].set_ylabel("time [ms]")
    for color, name in (("black", f"fastest of {baseline}"), (BLUE, "best parallel program")):
        panels[0].plot([], [], color=color, label=name)
    legend(drawing, 3, fontsize=SMALL)
    return drawing
