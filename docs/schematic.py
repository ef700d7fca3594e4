"""Draws docs/design.svg: a chain of steps, and the rounds that solve its linearisation.

python docs/schematic.py [FILE]
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

STEPS = 8
WHITE, BLUE, GREEN = ("#ffffff", "#555555"), ("#e8eef7", "#445566"), ("#dff0e0", "#448866")
ROUND = 1.15  # the height of a round


def main(path: Path) -> None:
    """Draw the schematic."""
    plt.rcParams.update({"svg.hashsalt": "deeppcr", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(figsize=(7.2, 4.3))
    axes.set_xlim(-1.1, STEPS + 0.4)
    axes.set_ylim(-6.6, 1.2)
    axes.axis("off")
    _sequential(axes)
    _rounds(axes)
    figure.savefig(
        path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None
    )


def _sequential(axes: Axes) -> None:
    axes.text(-1, 0.85, "sequential: L steps, one after another")
    axes.text(-0.85, 0, "$z_0$", ha="center", va="center")
    for step in range(STEPS):
        _box(axes, step, 0, "$f$", WHITE)
        _arrow(axes, (step - 0.68, 0), (step - 0.36, 0))
    _arrow(axes, (STEPS - 0.68, 0), (STEPS - 0.36, 0))
    axes.text(STEPS - 0.1, 0, f"$z_{STEPS}$", ha="center", va="center")


def _rounds(axes: Axes) -> None:
    y, distance = -1.75, 1
    axes.text(
        -1,
        y + 0.6,
        r"one iteration: all Jacobians side by side, then $\log_2 L$ rounds of products",
    )
    for step in range(STEPS):
        _box(axes, step, y, f"$A_{step + 1}\\;b_{step + 1}$", BLUE)
    while distance < STEPS:
        below = y - ROUND
        for step in range(STEPS):
            _arrow(axes, (step, y - 0.24), (step, below + 0.26))
            if step >= distance:
                _arrow(axes, (step - distance, y - 0.24), (step - 0.06, below + 0.26), "#bb6666")
        distance *= 2
        for step in range(STEPS):
            is_solved = step < distance
            _box(
                axes,
                step,
                below,
                f"$y_{step + 1}$" if is_solved else "",
                GREEN if is_solved else BLUE,
            )
        y = below
    axes.text(
        -1,
        y - 0.95,
        r"$y_l = A_l\,y_{l-1} + b_l$,   $A_l \approx \partial f/\partial z$:"
        "   repeated until the residual of the step itself is rounding",
    )


def _box(axes: Axes, x: float, y: float, label: str, colours: tuple[str, str]) -> None:
    face, edge = colours
    style = "round,pad=0,rounding_size=0.07"
    patch = FancyBboxPatch((x - 0.33, y - 0.22), 0.66, 0.44, style, fc=face, ec=edge, lw=0.9)
    axes.add_patch(patch)
    axes.text(x, y - 0.01, label, ha="center", va="center")


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = "#777777"
) -> None:
    arrow = {"arrowstyle": "->", "color": colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("design.svg"))
