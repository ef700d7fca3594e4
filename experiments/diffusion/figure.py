"""The figure of `python -m experiments diffusion`.

The digits after each iteration, and iterations and time against steps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.plots import figure, halves, plain_numbers, series

Row = dict[str, Any]
SEQUENTIAL = "sequential, fastest"
COLORS = {SEQUENTIAL: "black", "dense": "C0", "diagonal": "C1", "picard": "C3"}
METHODS = ("dense", "diagonal", "picard")
PIXELS = 8  # of a digit, each way
GAP = 2  # pixels between two


def draw(rows: Sequence[Row], gallery: Mapping[str, np.ndarray], path: Path) -> None:
    """Above: digits by iteration, Newton's and Picard's, and how far they are.

    Below: iterations, times by steps and by size.

    Args:
        rows: of all cases.
        gallery: images ``[n, 64]`` of the same samples by program: "lax.scan", "dense, 1", "dense,
            converged", ...
        path: of the file.
    """
    speed, stopped = ([row for row in rows if row["part"] == part] for part in ("speed", "stopped"))
    stopped = [row for row in stopped if "rtol" not in row["program"]]  # by number of iterations
    with figure(path, columns=3, height=7.4) as columns:
        (newton, iterations), (picard, by_steps), (distance, by_size) = map(halves, columns)
        _digits(newton, gallery, stopped, "dense", "dense Newton")
        _digits(picard, gallery, stopped, "picard", "Picard")
        _distances(distance, stopped)
        batch, size, steps = (_usual(speed, key) for key in ("batch", "w", "L"))
        along_steps = [row for row in speed if (row["batch"], row["w"]) == (batch, size)]
        along_sizes = [row for row in speed if (row["batch"], row["L"]) == (batch, steps)]
        of_steps, of_sizes = f"({size} latents, batch {batch})", f"({steps} steps, batch {batch})"
        title = f"iterations until converged {of_steps}"
        _lines(iterations, along_steps, "L", "iterations", title)
        _lines(by_steps, along_steps, "L", "ms", f"time [ms] {of_steps}")
        _lines(by_size, along_sizes, "w", "ms", f"time [ms] {of_sizes}")


def _usual(rows: Sequence[Row], key: str) -> Any:
    """The value that most rows have: that of the case around which others are varied."""
    values = [row[key] for row in rows]
    return max(values, key=values.count) if values else 0


def _digits(
    axes: Any, gallery: Mapping[str, np.ndarray], rows: Sequence[Row], method: str, title: str
) -> None:
    """The noise, a row of digits for every number of iterations, and the sequential samples."""
    last = {row["program"]: row for row in rows}  # of the last case, as the gallery is
    runs = [name for name in last if name.startswith(f"{method}, ") and len(gallery[name])]
    if not runs:
        axes.set_axis_off()
        return
    shown = {"noise": gallery["noise"], **{_iterations(last[name]): gallery[name] for name in runs}}
    shown["sequential"] = gallery["lax.scan"]
    strips = [_strip(images) for images in shown.values()]
    axes.imshow(np.concatenate(strips), cmap="gray_r", vmin=-1, vmax=1)
    middles = [(PIXELS + GAP) * k + PIXELS / 2 - 0.5 for k in range(len(shown))]
    axes.set_yticks(middles, list(shown))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    first = last["lax.scan"]
    axes.set_title(f"{title}: samples after k iterations ({first['L']} steps)")


def _iterations(row: Row) -> str:
    return f"{row['iterations']}" + (", converged" if row["ended"] == "converged" else "")


def _strip(images: np.ndarray) -> np.ndarray:
    """Images beside each other, with room around them."""
    squares = [
        np.pad(image.reshape(PIXELS, PIXELS), ((0, GAP), (0, GAP)), constant_values=-1)
        for image in images
    ]
    return np.concatenate(squares, axis=1)


def _distances(axes: Any, rows: Sequence[Row]) -> None:
    """How far samples are from the sequential ones, by iterations.

    Beside it how far those of other noise are.
    """
    if not rows:
        axes.set_axis_off()
        return
    rows = [row for row in rows if row["w"] == rows[-1]["w"]]  # of the last case, as the gallery is
    scatter = {"color": "0.4", "linestyle": "--", "label": "other noise, sequential"}
    axes.axhline(rows[0]["W1, other noise"], **scatter)
    for method in METHODS:
        mine = [row for row in rows if row["program"].startswith(f"{method}, ")]
        look = {"ms": 4, "color": COLORS[method], "label": method}
        series(axes, mine, "iterations", "W1 to sequential", "o-", **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("iterations")
    axes.set_title(f"W1 distance of pixels to the sequential samples ({rows[0]['w']} latents)")
    _legend(axes)


def _lines(axes: Any, rows: Sequence[Row], along: str, key: str, title: str) -> None:
    """A line for every method, dashed with a coarse guess, and one for the fastest loop."""
    if not rows:
        axes.set_axis_off()
        return
    ticks = sorted({row[along] for row in rows})
    names = dict.fromkeys(row["program"] for row in rows)
    lines = {name: [row for row in rows if row["program"] == name] for name in names}
    if key == "ms":
        loops = [row for row in rows if row["baseline"] and "ms" in row]
        fastest = {}
        for row in sorted(loops, key=lambda row: -float(row["ms"])):
            fastest[row[along]] = row
        lines[SEQUENTIAL] = list(fastest.values())
    for name, points in lines.items():
        method = name.partition(", coarse")[0]
        if method in COLORS:
            look = {"ms": 4, "color": COLORS[method], "label": name}
            series(axes, points, along, key, "o-" if method == name else "o--", **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.set_xticks([], minor=True)
    plain_numbers(axes.yaxis)
    axes.set_xlabel({"L": "steps", "w": "numbers a sample"}[along])
    axes.set_title(title)
    _legend(axes)


def _legend(axes: Any) -> None:
    """A legend, with room for it above the lines."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.4)
    axes.legend(fontsize=7, handlelength=3.2, ncols=2, loc="upper left")
