"""Pictures in one style, drawn without a screen.

The pictures of an experiment are drawn by one function of its file `figure.py`:

    pictures(rows) -> {topic: Figure}    what can be drawn of the rows, the most important first

`rows` are those of the result file. `run.py` hands the function to `experiments.bench.command`,
which saves what it returns: the first picture to a path, the others beside it. With ``mlp.png``,
the topic "forward" is ``mlp_forward.png``. Topics without rows are left out.

A picture is as wide as a page, 700 pixels, and has one or two panels. Its title says what is drawn
and of what, a speedup names its baseline, an axis its unit, and legends are below the panels.

All pictures of stored results are drawn anew, and nothing is measured, by

    python -m experiments.bench.plots [FILE.jsonl ...]
"""

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from experiments.bench.summary import CAPTURED

Draw = TypeVar("Draw", bound=Callable[..., Any])
Figures = dict[str, Any]  # by topic; matplotlib is imported by who draws

WIDTH = 7.0  # inches, which are 700 pixels on a page
DENSITY = 200  # pixels an inch: sharp where a screen has two pixels for one of a page
SMALL = 8.5  # points, of the smallest text
BLUE, RED, GREEN, PINK, YELLOW, SKY, BROWN = (  # told apart by colour-blind eyes, too
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f5539",
)
COLORS = (BLUE, RED, GREEN, PINK, YELLOW, SKY, BROWN)
GREYS = ("black", "0.4", "0.6", "0.75", "0.85")  # of sequential programs
STYLE: Any = {  # its keys are typed one by one in matplotlib
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": f"cycler('color', {COLORS})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.dpi": DENSITY,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.size": 9.5,
    "grid.alpha": 0.25,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.markersize": 5,
}


def can_draw() -> bool:
    """Whether matplotlib is there; says so where it is not."""
    if importlib.util.find_spec("matplotlib"):
        return True
    print("no figure: matplotlib is not installed")
    return False


def styled(draw: Draw) -> Draw:
    """Let a function draw in the style of all pictures."""

    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return cast(Draw, drawn)


@styled
def save(path: Path, pictures: Figures) -> list[Path]:
    """Write the first picture to `path`, the others beside it; return their paths.

    Without any picture, `path` says that there is nothing to draw.
    """
    if not pictures:
        pictures = {"": _nothing()}
    paths: list[Path] = []
    for topic, drawing in pictures.items():
        paths.append(path.with_stem(f"{path.stem}_{topic}") if paths else path)
        drawing.savefig(paths[-1])
        if paths[-1].suffix == ".png":
            _shrink(paths[-1])
    return paths


def _shrink(path: Path) -> None:
    """Keep 256 colours of a PNG, which makes it a third as large."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def _nothing() -> Any:
    drawing, (axes,) = sheet("", height=0.6)
    axes.set_axis_off()
    axes.text(0.5, 0.5, "There are no rows to draw.", ha="center", va="center")
    return drawing


def sheet(
    title: str, columns: int = 1, *, height: float = 3.4, **options: Any
) -> tuple[Any, list[Any]]:
    """A picture as wide as a page, and its panels side by side.

    Args:
        title: of the whole picture.
        columns: how many panels.
        height: in inches; the width is `WIDTH`.
        options: of `matplotlib.figure.Figure.subplots`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not pyplot: it keeps figures alive, and picks a backend that may want a screen.
    drawing = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(drawing)
    panels = list(drawing.subplots(1, columns, squeeze=False, **options)[0])
    if title:
        drawing.suptitle(title, x=0.012, ha="left")
    return drawing, panels


def legend(drawing: Any, columns: int = 4, **options: Any) -> None:
    """One legend of all panels below them, each label once."""
    found: dict[str, Any] = {}
    for axes in drawing.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        place = {"loc": "outside lower center", "ncols": min(columns, len(found))}
        drawing.legend(found.values(), found.keys(), **place, **options)


def loops(rows: Sequence[Mapping[str, Any]]) -> str:
    """The baselines of rows in words: "lax.scan with unroll 1, 4, 16, and a Python loop".

    A loop that a GPU runs as one graph has the name of the loop.
    """
    baselines = (row["program"].removesuffix(CAPTURED) for row in rows if row["baseline"])
    names = list(dict.fromkeys(baselines))
    unrolls = [
        found[1] for name in names if (found := re.fullmatch(r"lax\.scan, unroll (\d+)", name))
    ]
    others = [name for name in names if not re.fullmatch(r"lax\.scan(, unroll \d+)?", name)]
    said = [f"lax.scan with unroll {', '.join(['1', *unrolls])}"] if "lax.scan" in names else []
    said += ["a Python loop" if name == "unrolled" else name for name in others]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def speedup_maps(
    title: str,
    maps: Mapping[str, Any],
    ticks: tuple[Sequence[Any], Sequence[Any]],
    names: tuple[str, str],
    said: str,
) -> Any:
    """Maps of speedups side by side: blue where deeppcr is faster, red where slower, white at 1.

    Args:
        title: of the picture.
        maps: speedups ``[y, x]`` by title of the panel; NaN where there are none.
        ticks: the values along x, and along y.
        names: of x, and of y.
        said: what the speedup is, for the colour bar.
    """
    from matplotlib.colors import LogNorm

    drawing, panels = sheet(title, len(maps), height=1.95 + 0.34 * len(ticks[1]), sharey=True)
    powers = {name: np.log2(values) for name, values in maps.items()}
    known = np.concatenate([np.abs(found[np.isfinite(found)]) for found in powers.values()])
    most = float(np.clip(np.ceil(known.max(initial=2)), 2, 9))
    for axes, (name, found) in zip(panels, powers.items(), strict=True):
        look = {
            "origin": "lower",
            "cmap": "RdBu",
            "aspect": "auto",
            "norm": LogNorm(2**-most, 2**most),
        }
        image = axes.imshow(2.0**found, **look)
        number_cells(axes, 2.0**found, abs(found) > 0.6 * most)
        break_even(axes, found)
        axes.set_facecolor("0.9")  # of cells where nothing was measured
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xticks(range(len(ticks[0])), [f"{tick:,}" for tick in ticks[0]])
        axes.set_yticks(range(len(ticks[1])), [f"{tick:,}" for tick in ticks[1]])
        axes.set(xlabel=names[0], title=name)
    panels[0].set_ylabel(names[1])
    bar = drawing.colorbar(image, ax=panels, location="bottom", aspect=45, shrink=0.75, pad=0.03)
    step = 1 if most <= 3 else 2 if most <= 6 else 3
    marks = np.arange(-(most // step) * step, most + 1, step)
    bar.set_ticks(
        2.0**marks, labels=[f"1/{2**-mark:.0f}" if mark < 0 else f"{2**mark:.0f}" for mark in marks]
    )
    bar.ax.minorticks_off()
    bar.set_label(f"{said} [times]\nred: deeppcr is slower; blue: deeppcr is faster")
    return drawing


def grid(
    rows: Sequence[Mapping[str, Any]], key: str, x: str, y: str
) -> tuple[Any, list[Any], list[Any]]:
    """Numbers of rows as a map ``[y, x]``, NaN where there is none; the values of x, and of y."""
    along, up = (sorted({row[name] for row in rows}) for name in (x, y))
    found = np.full((len(up), len(along)), np.nan)
    for row in rows:
        if isinstance(row.get(key), float | int):
            found[up.index(row[y]), along.index(row[x])] = row[key]
    return found, along, up


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
            axes.text(j, i, two_digits(value), ha="center", va="center", fontsize=9, color=color)


def two_digits(value: float) -> str:
    """Two digits, and no exponent."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2g}"


def number(value: float) -> str:
    """Three digits, and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(
    axes: Any,
    names: Sequence[str],
    values: Sequence[float],
    colors: Sequence[str],
) -> None:
    """Horizontal bars from the top down, with a name on the left and a number at the end."""
    drawn = axes.barh(range(len(names)), values, color=colors, height=0.7)
    axes.bar_label(drawn, [number(value) for value in values], padding=3, fontsize=SMALL)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.tick_params("y", length=0)
    axes.grid(visible=False, axis="y")


def level(axes: Any, text: str, at: float = 1.0, side: str = "left") -> None:
    """A horizontal line, and what it is, above its left or right end."""
    axes.axhline(at, color="black", linewidth=1)
    place = {
        "xy": (0.01 if side == "left" else 0.99, at),
        "ha": side,
        "xycoords": axes.get_yaxis_transform(),
        "textcoords": "offset points",
    }
    axes.annotate(text, xytext=(0, 3), fontsize=SMALL, color="0.25", **place)


def plain_numbers(axis: Any) -> None:
    """Plain numbers along a logarithmic axis: 1, 2, 5 if it is short, else powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    subs = (1, 2, 5) if decades < 1.5 else (1, 3) if decades < 2.5 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=9 if decades < 4.5 else 5))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def values_as_ticks(axis: Any, values: Sequence[float]) -> None:
    """A tick for each of a few values, and no others."""
    axis.set_ticks(values, [f"{value:,}" for value in values])
    axis.set_ticks([], minor=True)


def series(
    axes: Any, rows: Sequence[Mapping[str, Any]], x: str, y: str, style: str, **options: Any
) -> None:
    """A line through the rows that have both cells, from left to right; none if there are none."""
    points = sorted((row[x], row[y]) for row in rows if x in row and y in row)
    if points:
        axes.plot(*zip(*points, strict=True), style, **options)


def drawer(name: str) -> Callable[..., Figures] | None:
    """The function `pictures` of an experiment; None if it has no pictures."""
    from experiments.bench.pictures import SINGLE

    if name in SINGLE:
        return SINGLE[name]
    module = f"experiments.{name}.figure"
    try:
        return importlib.import_module(module).pictures
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise  # something else is missing
        return None


def redraw(path: Path) -> list[Path]:
    """All pictures of a result file, beside it; none if its experiment has none."""
    from experiments.bench.results import read

    pictures = drawer(path.stem)
    return save(path.with_suffix(".png"), pictures(read(path)[1])) if pictures else []


def main(argv: list[str]) -> None:
    """Draw the pictures of result files anew: of those named, or of all that are stored."""
    from experiments.bench.results import FOLDER

    for path in map(Path, argv or sorted(map(str, FOLDER.glob("*/*.jsonl")))):
        for picture in redraw(path):
            print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
