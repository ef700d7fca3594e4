"""The figure of `python -m experiments mlp`.

Maps over depth and width, with the line where the parallel program breaks even.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.plots import break_even, figure, number_cells, parts
from experiments.bench.table import Row

COLUMNS = {
    "sequential ms": "sequential",
    "parallel ms": "parallel",
    "speedup": "speedup",
    "predicted speedup": "predicted speedup",
}
HEIGHT = 2.5  # inches, of a map


def draw(rows: Sequence[Row], path: Path) -> None:
    """A row of maps for each direction.

    Times of the best sequential and the best parallel program, speedup, predicted speedup.

    Of several activations and batches the one that has most cells is drawn.

    Args:
        rows: one for each size and direction, as `experiments.bench.summary.best` makes them.
        path: of the picture.
    """
    cases = Counter((row["kind"], row["batch"]) for row in rows)
    kind, batch = cases.most_common(1)[0][0] if cases else ("", 0)
    rows = [row for row in rows if (row["kind"], row["batch"]) == (kind, batch)]
    directions = list(dict.fromkeys(row["direction"] for row in rows))
    lengths, widths = (sorted({row[key] for row in rows}) for key in ("L", "w"))
    grids = {
        (key, direction): _grid(rows, direction, key, lengths, widths)
        for key in COLUMNS
        for direction in directions
    }
    count = max(1, len(directions))
    with figure(path, columns=len(COLUMNS), height=HEIGHT * count) as columns:
        for (key, title), column in zip(COLUMNS.items(), columns, strict=True):
            is_time, is_first = key.endswith(" ms"), key == "sequential ms"
            # Columns of times share their colours, and so do those of speedups.
            group = [grid for (of, _), grid in grids.items() if of.endswith(" ms") == is_time]
            for direction, axes in zip(directions, parts(column, count), strict=False):
                last = direction == directions[-1]
                _map(axes, grids[key, direction], group, is_time)
                axes.set_xticks(range(len(lengths)), lengths if last else [""] * len(lengths))
                axes.set_yticks(range(len(widths)), widths if is_first else [""] * len(widths))
                axes.set_xlabel("layers" if last else "")
                axes.set_ylabel("units" if is_first else "")
                which = f", {kind}, batch {batch}" if is_first else ""
                axes.set_title(f"{direction}: {title}" + " [ms]" * is_time + which)


def _grid(
    rows: Sequence[Row], direction: str, key: str, lengths: list[int], widths: list[int]
) -> Any:
    """Logarithms, base 10, by width and length; NaN where nothing was measured."""
    grid = np.full((len(widths), len(lengths)), np.nan)
    for row in rows:
        if row["direction"] == direction and isinstance(row.get(key), float | int):
            grid[widths.index(row["w"]), lengths.index(row["L"])] = np.log10(row[key])
    return grid


def _map(axes: Any, grid: Any, group: list[Any], is_time: bool) -> None:
    known = np.concatenate([other[np.isfinite(other)] for other in group])
    low, high = (known.min(), known.max()) if known.size else (-1.0, 1.0)
    if is_time:
        colours, dark = "YlGnBu", grid > low + 0.6 * (high - low)
    else:
        high = max(abs(low), abs(high), 0.3)
        low, colours, dark = -high, "RdBu", np.abs(grid) > 0.6 * high
        break_even(axes, grid)
    axes.imshow(grid, origin="lower", cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.grid(visible=False)
    axes.set_facecolor("0.88")  # of cells where nothing was measured
    axes.tick_params(length=0, labelsize=7)
    number_cells(axes, 10.0**grid, dark)
