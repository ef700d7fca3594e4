"""The pictures of `python -m experiments recurrence`.

The fastest parallel solver beside the fastest loop, and the time of every solver.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from experiments.bench.plots import (
    COLORS,
    GREYS,
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

MARKERS = "osD^vP*"  # of solvers
NAMES = {"L": "steps L", "w": "rows w of a block"}


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Speedups over L and w; times along L, and along w.

    Of several kinds and batches the one that has most rows is drawn.
    """
    rows = [row for row in rows if is_benchmark(row)]
    if not rows:
        return {}
    keys = ("kind", "batch", "direction")
    cases = Counter(tuple(row[key] for key in keys) for row in rows)
    (kind, batch, direction), _ = cases.most_common(1)[0]
    rows = [row for row in rows if tuple(row[key] for key in keys) == (kind, batch, direction)]
    what = f"Linear recurrence, {kind} blocks, batch {batch}"
    found: Figures = {}
    if cells := list(best(rows)):
        panels = {"measured": "speedup", "predicted": "predicted speedup"}
        maps = {name: grid(cells, key, "L", "w") for name, key in panels.items()}
        _, lengths, widths = maps["measured"]
        found["speedup"] = speedup_maps(
            f"{what}: speedup over the best loop",
            {name: values for name, (values, _, _) in maps.items()},
            (lengths, widths),
            (NAMES["L"], NAMES["w"]),
            f"best parallel solver over the fastest of {loops(rows)}",
        )
    for topic, along, other in (("length", "L", "w"), ("width", "w", "L")):
        if any("ms" in row for row in rows):
            ends = sorted({row[other] for row in rows})
            at = dict.fromkeys([ends[0], ends[-1]])
            title = f"{what}: time of a solve (down is better)"
            found[topic] = _times(title, rows, along, other, list(at))
    return found


def _times(title: str, rows: Sequence[Row], along: str, other: str, at: Sequence[int]) -> Any:
    """A panel for each value of `other`: sequential programs in grey, parallel ones in colours."""
    sequential = list(dict.fromkeys(row["program"] for row in rows if row["baseline"]))
    solvers = list(dict.fromkeys(row["program"] for row in rows if not row["baseline"]))
    looks = dict(zip(sequential, ((color, "x") for color in GREYS), strict=False))
    looks |= dict(zip(solvers, zip(COLORS, MARKERS, strict=True), strict=False))
    drawing, panels = sheet(title, len(at), height=4.4, sharey=True)
    for axes, value in zip(panels, at, strict=True):
        for name, (color, marker) in looks.items():
            mine = [row for row in rows if (row[other], row["program"]) == (value, name)]
            right = [row for row in mine if "speedup" in row]
            series(axes, right, along, "ms", f"{marker}-", color=color, label=name)
        axes.set(
            xscale="log", yscale="log", xlabel=NAMES[along], title=f"{NAMES[other]} = {value:,}"
        )
        values_as_ticks(axes.xaxis, sorted({row[along] for row in rows}))
        plain_numbers(axes.yaxis)
    panels[0].set_ylabel("time [ms]")
    legend(drawing, 4, fontsize=SMALL)
    return drawing
