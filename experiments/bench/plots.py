"""Pictures in one style, drawn without a screen.

The module of an experiment draws its pictures by one function:

    pictures(rows) -> {topic: Figure}    what can be drawn of the rows, the most important first

``rows`` are those of the result file. The first picture is saved to a path, the others beside it:
with ``mlp.png``, the topic "forward" is ``mlp_forward.png``. Topics without rows are left out. A
picture is as wide as a page, 700 pixels. Its title says what is drawn, a speedup names its
baseline, an axis its unit, and legends are below the panels. There are four kinds: `lines` along
an axis, `dots` for every case, `curves` of training, and `speedup_maps` over two axes.

All pictures of stored results are drawn anew, and nothing is measured, by

    python -m experiments.bench.plots [FILE.jsonl ...]
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from experiments.bench import results
from experiments.bench.summary import CAPTURED
from experiments.bench.table import Row

Draw = TypeVar("Draw", bound=Callable[..., Any])
Figures = dict[str, Any]  # by topic; matplotlib is imported by who draws
Look = dict[str, Any]  # colour, marker and line

WIDTH = 7.0  # inches, which are 700 pixels on a page
DENSITY = 200  # pixels an inch: sharp where a screen has two pixels for one of a page
SMALL = 8.5  # points, of the smallest text
# Told apart by colour-blind eyes, too.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5539")
BLUE, RED, GREEN, PINK, YELLOW, SKY, BROWN = COLORS
GREYS = ("black", "0.4", "0.6", "0.75", "0.85")  # of sequential programs
MARKERS = "osD^vP*"
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
    """Write the first picture to ``path``, the others beside it; return their paths."""
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
        widest = max(1, 90 // (6 + max(map(len, found))))  # letters in a line of the page
        place = {"loc": "outside lower center", "ncols": min(columns, len(found), widest)}
        drawing.legend(found.values(), found.keys(), **place, **options)


def loops(rows: Sequence[Row]) -> str:
    """The baselines of rows in words: "lax.scan with unroll 1, 4, 16, and a Python loop".

    A loop that a GPU runs as one graph has the name of the loop.
    """
    baselines = (row["program"].removesuffix(CAPTURED) for row in rows if row["baseline"])
    names = list(dict.fromkeys(baselines))
    unrolls = [name.rpartition(" ")[2] for name in names if name.startswith("lax.scan, unroll ")]
    said = [f"lax.scan with unroll {', '.join(['1', *unrolls])}"] if "lax.scan" in names else []
    others = [name for name in names if not name.startswith("lax.scan")]
    said += ["a Python loop" if name == "unrolled" else name for name in others]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def looks(rows: Iterable[Row], key: str = "program") -> dict[str, Look]:
    """A look for each value of ``key``: black and grey for sequential programs, colours else."""
    found, colored, grey = dict[str, Look](), zip(cycle(COLORS), cycle(MARKERS)), cycle(GREYS)
    for row in rows:
        if row[key] in found:
            continue
        if row.get("baseline"):
            found[row[key]] = {"color": next(grey), "marker": "x", "ls": "--"}
        else:
            found[row[key]] = dict(zip(("color", "marker"), next(colored), strict=True))
    return found


def lines(
    title: str,
    panels: Mapping[str, tuple[Sequence[Row], str, str]],
    x: str,
    xlabel: str,
    *,
    key: str = "program",
    at: float | None = None,
    dashed: str | None = None,
    height: float = 3.8,
    xscale: str = "log",
    share: bool = False,
) -> Any:
    """Panels of lines, one for each program.

    Args:
        title: of the picture.
        panels: rows, the cell that is drawn and the label of its axis, by title.
        x: the cell along the axis.
        xlabel: what it is.
        key: the cell that tells lines apart.
        at: a level to draw.
        dashed: a cell to draw as an open dashed line, too: a prediction.
        height: in inches.
        xscale: of the axis.
        share: whether all panels have one axis upwards.
    """
    drawing, axes = sheet(title, len(panels), height=height, sharey=share)
    every = [row for rows, *_ in panels.values() for row in rows]
    known = looks(every, key)
    for panel, (name, (rows, y, ylabel)) in zip(axes, panels.items(), strict=True):
        for label, look in known.items():
            mine = [row for row in rows if row[key] == label]
            styles = {y: {"label": label, "ls": "-", "lw": 1.3} | look}
            if dashed:
                styles[dashed] = look | {"ls": ":", "lw": 1, "mfc": "white"}
            for cell, style in styles.items():
                points = sorted((row[x], row[cell]) for row in mine if x in row and cell in row)
                if points:
                    panel.plot(*zip(*points, strict=True), **style)
        if at is not None:
            panel.axhline(at, color="black", linewidth=1)
        if dashed:
            panel.plot([], [], "o:", color="0.4", mfc="white", label="predicted")
        panel.set(yscale="log", xlabel=xlabel, title=name)
        if not share or panel is axes[0]:
            panel.set_ylabel(ylabel)
        if xscale == "log":
            panel.set_xscale("log")
            values_as_ticks(panel.xaxis, sorted({row[x] for row in rows if x in row}))
        plain_numbers(panel.yaxis)
    legend(drawing, 3, fontsize=SMALL)
    return drawing


def dots(
    title: str,
    rows: Sequence[Row],
    key: str,
    xlabel: str,
    case: Callable[[Row], str],
    *,
    program: Callable[[Row], str] = lambda row: str(row["program"]),
    predicted: str | None = None,
    is_open: Callable[[Row], bool] | None = None,
    at: float | None = 1.0,
) -> Any:
    """A line for every case with a dot for every program, open where predicted or ``is_open``."""
    rows = [row | {"case": case(row), "named": program(row)} for row in rows if key in row]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    known = looks(rows, "named")
    drawing, (axes,) = sheet(title, height=min(1.5 + 0.36 * len(cases), WIDTH))
    axes.set_xscale("log")
    for k, (name, look) in enumerate(known.items()):
        aside = 0.5 / len(known) * (k - (len(known) - 1) / 2)  # equal numbers hide nothing
        style = look | {"ls": ""}
        for row in rows:
            if row["named"] == name:
                y = cases.index(row["case"]) + aside
                if predicted in row:
                    axes.plot(row[predicted], y, **style, mfc="none", alpha=0.6)
                fill = "none" if is_open and is_open(row) else look["color"]
                axes.plot(row[key], y, **style, mfc=fill)
        axes.plot([], [], label=name, **style)
    if at is not None:
        axes.axvline(at, color="black", linewidth=1)
    for y in range(1, len(cases)):
        axes.axhline(y - 0.5, color="0.85", lw=0.8)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=xlabel, ylim=(len(cases) - 0.5, -0.5))
    plain_numbers(axes.xaxis)
    axes.set_yticks(range(len(cases)), cases)
    legend(drawing, 4)
    return drawing


def curves(
    title: str, panels: Mapping[str, Sequence[Row]], xlabel: str = "training step", x: str = ""
) -> Any:
    """Panels of curves, one for each program: losses of trainings.

    Args:
        title: of the picture.
        panels: rows with the cells "program" and "losses", by title.
        xlabel: what the axis is.
        x: a cell with where the losses are along it; without one they are counted, and curves
            that lie on each other are of several widths.
    """
    drawing, axes = sheet(title, len(panels), height=3.6)
    known = looks([row for rows in panels.values() for row in rows])
    for panel, (name, rows) in zip(axes, panels.items(), strict=True):
        for width, row in zip(np.linspace(1 if x else 6, 1, len(rows)), rows, strict=True):
            look = {"lw": width, "color": known[row["program"]]["color"]}
            losses = row["losses"]
            panel.plot(row[x] if x else range(len(losses)), losses, label=row["program"], **look)
        panel.set(yscale="log", xlabel=xlabel, title=name)
        plain_numbers(panel.yaxis)
    axes[0].set_ylabel("loss [nats]")
    legend(drawing, 4)
    return drawing


def speedup_maps(
    title: str,
    maps: Mapping[str, tuple[Sequence[Row], str]],
    x: tuple[str, str],
    y: tuple[str, str],
    said: str,
) -> Any:
    """Maps of speedups side by side: blue where deeppcr is faster, red where slower, white at 1.

    Args:
        title: of the picture.
        maps: rows and the cell with the speedup, by title of the panel.
        x: the cell along the axis, and what it is.
        y: the same upwards.
        said: what the speedup is, for the colour bar.
    """
    from matplotlib.colors import LogNorm

    every = [row for rows, _ in maps.values() for row in rows]
    along, up = (sorted({row[name] for row in every}) for name, _ in (x, y))
    drawing, panels = sheet(title, len(maps), height=1.95 + 0.34 * len(up), sharey=True)
    powers = {name: np.full((len(up), len(along)), np.nan) for name in maps}
    for name, (rows, key) in maps.items():
        for row in rows:
            if isinstance(row.get(key), float | int):
                powers[name][up.index(row[y[0]]), along.index(row[x[0]])] = np.log2(row[key])
    known = np.concatenate([np.abs(found[np.isfinite(found)]) for found in powers.values()])
    most = float(np.clip(np.ceil(known.max(initial=2)), 2, 9))
    look: Any = {"origin": "lower", "cmap": "RdBu", "aspect": "auto"}
    for axes, (name, found) in zip(panels, powers.items(), strict=True):
        image = axes.imshow(2.0**found, norm=LogNorm(2**-most, 2**most), **look)
        for (i, j), power in np.ndenumerate(found):
            if np.isfinite(power):
                color = "white" if abs(power) > 0.6 * most else "black"
                text = two_digits(2.0**power)
                axes.text(j, i, text, ha="center", va="center", fontsize=9, color=color)
        axes.set_facecolor("0.9")  # of cells where nothing was measured
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xticks(range(len(along)), [f"{tick:,}" for tick in along])
        axes.set_yticks(range(len(up)), [f"{tick:,}" for tick in up])
        axes.set(xlabel=x[1], title=name)
    panels[0].set_ylabel(y[1])
    bar = drawing.colorbar(image, ax=panels, location="bottom", aspect=45, shrink=0.75, pad=0.03)
    step = 1 if most <= 3 else 2 if most <= 6 else 3
    marks = [int(mark) for mark in np.arange(-(most // step) * step, most + 1, step)]
    labels = [f"1/{2**-mark}" if mark < 0 else f"{2**mark}" for mark in marks]
    bar.set_ticks([2.0**mark for mark in marks], labels=labels)
    bar.ax.minorticks_off()
    bar.set_label(f"{said} [times]\nred: deeppcr is slower; blue: deeppcr is faster")
    return drawing


def two_digits(value: float) -> str:
    """Two digits, and no exponent."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2g}"


def short(value: float) -> str:
    """As on an axis: 0.1, 1,000, 10 M."""
    return (
        f"{value:g}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.0f} M"
    )


def plain_numbers(axis: Any) -> None:
    """Plain numbers along a logarithmic axis, at least two: powers of ten, 1, 2, 5 if it is short.

    On one that ends before five times its start these may be a single number; it gets those of a
    linear axis.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    subs = (1, 2, 5) if decades < 1.5 else (1, 3) if decades < 2.5 else (1,)
    locator: Any = LogLocator(subs=subs, numticks=9 if decades < 4.5 else 5)
    axis.set_major_locator(MaxNLocator(4) if decades < np.log10(5) else locator)
    axis.set_major_formatter(lambda value, _: short(value))
    axis.set_minor_formatter(NullFormatter())


def values_as_ticks(axis: Any, values: Sequence[float]) -> None:
    """A tick for each of a few values, and no others."""
    some = list(values)[:: 1 + len(values) // 10]
    axis.set_ticks(some, [f"{value:,}" for value in some])
    axis.set_ticks([], minor=True)


def drawer(name: str) -> Callable[..., Figures]:
    """The function ``pictures`` of an experiment; without one, there are none."""
    drawn: Any = getattr(results.experiment(name), "pictures", lambda rows: {})
    return cast(Callable[..., Figures], drawn)


def main(argv: list[str]) -> None:
    """Draw the pictures of result files anew: of those named, or of all that are stored."""
    for path in map(Path, argv or sorted(map(str, results.FOLDER.glob("*/*/*.jsonl")))):
        if found := drawer(path.stem)(results.read(path)[1]):
            print(*save(path.with_suffix(".png"), found), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
