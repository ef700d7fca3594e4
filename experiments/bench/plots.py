"""Figures in one style, drawn without a screen."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

STYLE: Any = {  # its keys are typed one by one in matplotlib
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "figure.dpi": 150,
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def can_draw() -> bool:
    """Whether matplotlib is there; says so where it is not."""
    if importlib.util.find_spec("matplotlib"):
        return True
    print("no figure: matplotlib is not installed")
    return False


@contextmanager
def figure(path: Path, columns: int = 1, *, height: float = 3.2) -> Iterator[list[Any]]:
    """A row of axes to draw on; saved to `path` when the block ends."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        # Not pyplot: it keeps figures alive, and picks a backend that may want a screen.
        drawing = Figure(figsize=(4.6 * columns, height), layout="constrained")
        FigureCanvasAgg(drawing)
        yield list(drawing.subplots(1, columns, squeeze=False)[0])
        drawing.savefig(path)


def parts(axes: Any, count: int) -> list[Any]:
    """So many axes, one above the other, in the place of one."""
    drawing, grid = axes.figure, axes.get_subplotspec().subgridspec(count, 1)
    axes.remove()
    return [drawing.add_subplot(cell) for cell in grid]


def halves(axes: Any) -> list[Any]:
    """Two axes, one above the other, in the place of one."""
    return parts(axes, 2)


def break_even(axes: Any, powers: Any) -> None:
    """A line along the edges between cells that are faster and cells that are slower.

    Logarithms of speedups, NaN for unknown.
    """
    line = {"color": "black", "linewidth": 2, "solid_capstyle": "projecting"}
    for (i, j), power in np.ndenumerate(powers):
        for di, dj in ((0, 1), (1, 0)):
            if i + di < powers.shape[0] and j + dj < powers.shape[1]:
                other = powers[i + di, j + dj]
                if np.isfinite(power + other) and (power >= 0) != (other >= 0):
                    x, y = j + dj / 2, i + di / 2  # the middle of the edge
                    axes.plot([x - di / 2, x + di / 2], [y - dj / 2, y + dj / 2], **line)


def number_cells(axes: Any, values: Any, dark: Any) -> None:
    """The values of a map in its cells, white on dark ones; nothing where they are NaN."""
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if dark[i, j] else "black"
            axes.text(j, i, two_digits(value), ha="center", va="center", fontsize=7, color=color)


def two_digits(value: float) -> str:
    """Two digits, and no exponent."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2g}"


def plain_numbers(axis: Any) -> None:
    """Powers of ten as numbers."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def decades(axes: Any, which: str) -> None:
    """Limits of a logarithmic axis, "x" or "y", at powers of ten: else none may be seen."""
    low, high = getattr(axes, f"get_{which}lim")()
    getattr(axes, f"set_{which}lim")(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    getattr(axes, f"{which}axis").set_major_formatter("{x:g}")


def series(
    axes: Any, rows: Sequence[Mapping[str, Any]], x: str, y: str, style: str, **options: Any
) -> None:
    """A line through the rows that have both cells, from left to right; none if there are none."""
    points = sorted((row[x], row[y]) for row in rows if x in row and y in row)
    if points:
        axes.plot(*zip(*points, strict=True), style, **options)
