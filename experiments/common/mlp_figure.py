"""The figure of `python -m experiments mlp`: maps over depth and width, with the line where the parallel program breaks even."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.plots import figure, parts

Row = dict[str, Any]

COLUMNS = {
    "sequential ms": "sequential",
    "parallel ms": "parallel",
    "speedup": "speedup",
    "predicted speedup": "predicted speedup",
}
HEIGHT = 2.5  # inches, of a map


def draw(rows: Sequence[Row], path: Path) -> None:
    """A row of maps for each direction: times of the best sequential and the best parallel program, speedup, predicted speedup.

    Of several activations and batches the one that has most cells is drawn.

    Args:
        rows: one for each size and direction, as `experiments.common.summary.best` makes them.
        path: of the picture.
    """
    (kind, batch), _ = max(
        Counter((row["kind"], row["batch"]) for row in rows).items(),
        key=lambda item: item[1],
        default=(("", 0), 0),
    )
    rows = [row for row in rows if (row["kind"], row["batch"]) == (kind, batch)]
    directions = list(dict.fromkeys(row["direction"] for row in rows))
    lengths, widths = (sorted({row[key] for row in rows}) for key in ("L", "w"))
    powers = {
        (key, direction): _grid(
            [row for row in rows if row["direction"] == direction], key, lengths, widths
        )
        for key in COLUMNS
        for direction in directions
    }
    with figure(path, columns=len(COLUMNS), height=HEIGHT * max(1, len(directions))) as columns:
        for (key, title), column in zip(COLUMNS.items(), columns, strict=True):
            group = [grid for (of, _), grid in powers.items() if of in _beside(key)]
            for direction, axes in zip(
                directions, parts(column, max(1, len(directions))), strict=False
            ):
                last = direction == directions[-1]
                _map(axes, powers[key, direction], group, key)
                axes.set_xticks(range(len(lengths)), lengths if last else [""] * len(lengths))
                axes.set_yticks(
                    range(len(widths)), widths if key == "sequential ms" else [""] * len(widths)
                )
                axes.set_xlabel("layers" if last else "")
                axes.set_ylabel("units" if key == "sequential ms" else "")
                axes.set_title(
                    f"{direction}: {title}"
                    + (f" [ms], {kind}, batch {batch}" if key == "sequential ms" else _unit(key))
                )


def _unit(key: str) -> str:
    return " [ms]" if key.endswith(" ms") else ""


def _beside(key: str) -> tuple[str, ...]:
    """The columns that share their colours."""
    return (
        ("sequential ms", "parallel ms")
        if key.endswith(" ms")
        else ("speedup", "predicted speedup")
    )


def _grid(rows: Sequence[Row], key: str, lengths: list[int], widths: list[int]) -> Any:
    """Logarithms, base 10, by width and length; NaN where nothing was measured."""
    grid = np.full((len(widths), len(lengths)), np.nan)
    for row in rows:
        if isinstance(row.get(key), float | int):
            grid[widths.index(row["w"]), lengths.index(row["L"])] = np.log10(row[key])
    return grid


def _map(axes: Any, grid: Any, group: list[Any], key: str) -> None:
    known = np.concatenate([other[np.isfinite(other)] for other in group])
    low, high = (known.min(), known.max()) if known.size else (-1.0, 1.0)
    if key in ("speedup", "predicted speedup"):
        high = max(abs(low), abs(high), 0.3)
        axes.imshow(grid, origin="lower", cmap="RdBu", vmin=-high, vmax=high, aspect="auto")
        dark = np.abs(grid) > 0.6 * high
        _break_even(axes, grid)
    else:
        axes.imshow(grid, origin="lower", cmap="YlGnBu", vmin=low, vmax=high, aspect="auto")
        dark = grid > low + 0.6 * (high - low)
    axes.grid(visible=False)
    axes.set_facecolor("0.88")  # of cells where nothing was measured
    axes.tick_params(length=0, labelsize=7)
    for (i, j), power in np.ndenumerate(grid):
        if np.isfinite(power):
            axes.text(
                j,
                i,
                _digits(10.0**power),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark[i, j] else "black",
            )


def _break_even(axes: Any, grid: Any) -> None:
    """A line along the edges between cells that are faster and cells that are slower."""
    for (i, j), power in np.ndenumerate(grid):
        if (
            j + 1 < grid.shape[1]
            and (power >= 0) != (grid[i, j + 1] >= 0)
            and np.isfinite(power + grid[i, j + 1])
        ):
            axes.plot(
                [j + 0.5, j + 0.5],
                [i - 0.5, i + 0.5],
                color="black",
                linewidth=2,
                solid_capstyle="projecting",
            )
        if (
            i + 1 < grid.shape[0]
            and (power >= 0) != (grid[i + 1, j] >= 0)
            and np.isfinite(power + grid[i + 1, j])
        ):
            axes.plot(
                [j - 0.5, j + 0.5],
                [i + 0.5, i + 0.5],
                color="black",
                linewidth=2,
                solid_capstyle="projecting",
            )


def _digits(value: float) -> str:
    """Two digits, and no exponent."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2g}"
