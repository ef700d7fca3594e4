"""Draws docs/chain.svg: a chain of steps, and the rounds that solve its linearisation.

python docs/schematic.py [FILE]
"""

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

STEPS = 8
WIDTH, HEIGHT = 8.0, 6.35  # inches; a unit of the axes is one inch
INK, GREY, PAPER = "#1f2933", "#7b8794", "#ffffff"
STEP, LINEAR, SOLVED = ("#fdf1dc", "#c9862b"), ("#e4edf8", "#3f6fa8"), ("#d9efe0", "#2f855a")
FIRST, APART = 1.5, 0.77  # the first column, and how far columns are apart
BOX, ROUND = (0.58, 0.37), 0.72  # the size of a box; the height of a round
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 13,
    "mathtext.fontset": "cm",
    "svg.fonttype": "path",  # the same picture wherever it is seen, whatever fonts are there
    "svg.hashsalt": "deeppcr",
    "text.color": INK,
}


def main(path: Path) -> None:
    """Draw the schematic."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
        axes.axis("off")
        _paper(axes)
        _sequential(axes, HEIGHT - 0.42)
        _parallel(axes, HEIGHT - 2.3)
        metadata = {"Date": None, "Title": "A chain of steps, and its solution in parallel"}
        is_svg = path.suffix == ".svg"
        figure.savefig(path, transparent=True, dpi=100, metadata=metadata if is_svg else None)


def _paper(axes: Axes) -> None:
    """White paper with round corners, for pages of any colour."""
    edge = 0.02
    style = "round,pad=0,rounding_size=0.16"
    size = (WIDTH - 2 * edge, HEIGHT - 2 * edge)
    axes.add_patch(FancyBboxPatch((edge, edge), *size, style, fc=PAPER, ec="#d5dbe1", lw=1))


def _sequential(axes: Axes, y: float) -> None:
    """A row of steps, and the equation of the chain."""
    _heading(axes, y, "Sequential", r"$L$ steps, one after another")
    y -= 0.56
    for step in range(STEPS):
        _box(axes, step, y, "$f$", STEP)
    for step in range(STEPS + 1):
        _arrow(axes, (_column(step) - APART + BOX[0] / 2, y), (_column(step) - BOX[0] / 2, y))
    for step, state in ((-1, "$z_0$"), (STEPS, f"$z_{STEPS}$")):
        aside = 0.08 if step < 0 else -0.08
        axes.text(_column(step) + aside, y, state, ha="center", va="center", fontsize=17)
    equation = r"$z_l = f(z_{l-1},\, x_l), \qquad l = 1, \ldots, L$"
    axes.text(WIDTH / 2, y - 0.58, equation, ha="center", va="center", fontsize=18)


def _parallel(axes: Axes, y: float) -> None:
    """All steps at once, the rounds that join them, and the linearised equation."""
    _heading(axes, y, "Parallel", r"all $L$ steps at once, then $\log_2 L$ rounds of products")
    y -= 0.52
    _label(axes, y, "linearise")
    for step in range(STEPS):
        _box(axes, step, y, f"$A_{step + 1}\\, b_{step + 1}$", LINEAR, size=15)
    distance, number = 1, 1
    while distance < STEPS:
        below = y - ROUND
        top, bottom = y - BOX[1] / 2, below + BOX[1] / 2
        for step in range(STEPS):
            _arrow(axes, (_column(step), top), (_column(step), bottom))
            if step >= distance:
                start, end = (_column(step - distance) + 0.05, top), (_column(step) - 0.09, bottom)
                _arrow(axes, start, end, LINEAR[1])
        distance *= 2
        for step in range(STEPS):
            is_solved = step < distance
            label, colours = (f"$z_{step + 1}$", SOLVED) if is_solved else ("", LINEAR)
            _box(axes, step, below, label, colours)
        _label(axes, below, f"round {number}")
        y, number = below, number + 1
    equation = r"$z_l = A_l\, z_{l-1} + b_l, \qquad A_l \approx \partial f / \partial z$"
    axes.text(WIDTH / 2, y - 0.58, equation, ha="center", va="center", fontsize=18)
    said = "Newton's method repeats this until $z$ solves the chain to rounding error."
    axes.text(WIDTH / 2, y - 1.02, said, ha="center", va="center")


def _column(step: int) -> float:
    return FIRST + APART * step


def _heading(axes: Axes, y: float, name: str, said: str) -> None:
    axes.text(0.3, y, name, fontsize=15, fontweight="bold", va="baseline")
    axes.text(1.85, y, said, fontsize=14, va="baseline")


def _label(axes: Axes, y: float, said: str) -> None:
    axes.text(0.3, y, said, color="#52606d", fontsize=11.5, va="center")


def _box(
    axes: Axes, step: int, y: float, label: str, colours: tuple[str, str], size: float = 17
) -> None:
    (width, height), (face, edge) = BOX, colours
    corner = (_column(step) - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.07"
    axes.add_patch(FancyBboxPatch(corner, width, height, style, fc=face, ec=edge, lw=1.2))
    axes.text(_column(step), y - 0.01, label, ha="center", va="center", fontsize=size)


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY
) -> None:
    look = {"arrowstyle": "-|>,head_length=0.3,head_width=0.16", "color": colour, "lw": 1.1}
    axes.annotate("", xy=end, xytext=start, arrowprops=look | {"shrinkA": 0, "shrinkB": 1})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("chain.svg"))
