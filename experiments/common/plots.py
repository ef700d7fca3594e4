"""Figures in one style, drawn without a screen."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
