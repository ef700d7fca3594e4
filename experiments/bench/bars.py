"""The picture of an experiment without one of its own: a bar for each row."""

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.bench.plots import figure
from experiments.bench.table import Row

GREY = "0.6"  # of what others are compared with


def bars(
    rows: Sequence[Row],
    path: Path,
    key: str,
    *,
    label: str,
    title: str,
    name: Callable[[Row], str],
    is_ours: Callable[[Row], bool],
) -> None:
    """Draw the cells ``key`` of all rows that have one, on a logarithmic axis.

    Args:
        rows: of an experiment.
        path: of the picture.
        key: the cell to draw.
        label: of the axis, with its unit.
        title: of the picture.
        name: of a bar.
        is_ours: whether a bar is coloured, rather than grey.
    """
    found = [row for row in rows if key in row]
    with figure(path, height=0.3 * len(found) + 1.2) as (axes,):
        colors = ["C0" if is_ours(row) else GREY for row in found]
        axes.barh(range(len(found)), [row[key] for row in found], color=colors)
        axes.set_yticks(range(len(found)), [name(row) for row in found], fontsize=7)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set(xscale="log" if found else "linear", xlabel=label, title=title)
