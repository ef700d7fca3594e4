"""The figure of `python -m experiments diffusion`: the digits after each iteration, and iterations and time against steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.plots import figure, halves

Row = dict[str, Any]
SEQUENTIAL = "sequential, fastest"
COLORS = {SEQUENTIAL: "black", "dense": "C0", "diagonal": "C1", "picard": "C3"}
METHODS = ("dense", "diagonal", "picard")
PIXELS = 8  # of a digit, each way
GAP = 2  # pixels between two


def draw(rows: Sequence[Row], gallery: Mapping[str, np.ndarray], path: Path) -> None:
    """Above: digits by iteration, Newton's and Picard's, and how far they are. Below: iterations, times by steps and by size.

    Args:
        rows: of all cases.
        gallery: images ``[n, 64]`` of the same samples by program: "lax.scan", "dense, 1", "dense, converged", ...
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
        _lines(
            iterations,
            along_steps,
            "L",
            "iterations",
            f"iterations until converged ({size} latents, batch {batch})",
        )
        _lines(by_steps, along_steps, "L", "ms", f"time [ms] ({size} latents, batch {batch})")
        _lines(by_size, along_sizes, "w", "ms", f"time [ms] ({steps} steps, batch {batch})")


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
    axes.imshow(
        np.concatenate([_strip(images) for images in shown.values()]),
        cmap="gray_r",
        vmin=-1,
        vmax=1,
    )
    axes.set_yticks([(PIXELS + GAP) * k + PIXELS / 2 - 0.5 for k in range(len(shown))], list(shown))
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
    """How far samples are from the sequential ones, by iterations; beside it how far those of other noise are."""
    if not rows:
        axes.set_axis_off()
        return
    rows = [row for row in rows if row["w"] == rows[-1]["w"]]  # of the last case, as the gallery is
    axes.axhline(
        rows[0]["W1, other noise"], color="0.4", linestyle="--", label="other noise, sequential"
    )
    for method in METHODS:
        points = [
            row
            for row in rows
            if row["program"].startswith(f"{method}, ") and "W1 to sequential" in row
        ]
        if points:
            distances = [row["W1 to sequential"] for row in points]
            axes.plot(
                [row["iterations"] for row in points],
                distances,
                "o-",
                ms=4,
                color=COLORS[method],
                label=method,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("iterations")
    axes.set_title(f"W1 distance of pixels to the sequential samples ({rows[0]['w']} latents)")
    _legend(axes)


def _lines(axes: Any, rows: Sequence[Row], along: str, key: str, title: str) -> None:
    """A line for every method, dashed with a coarse guess, and one for the fastest sequential program."""
    if not rows:
        axes.set_axis_off()
        return
    ticks = sorted({row[along] for row in rows})
    lines = {
        name: [row for row in rows if row["program"] == name]
        for name in dict.fromkeys(row["program"] for row in rows)
    }
    if key == "ms":
        lines[SEQUENTIAL] = [
            _fastest([row for row in rows if row["baseline"] and row[along] == tick])
            for tick in ticks
        ]
    for name, points in lines.items():
        method = name.partition(", coarse")[0]
        points = sorted((row for row in points if key in row), key=lambda row: row[along])
        if method in COLORS and points:
            style = "o-" if method == name else "o--"
            axes.plot(
                [row[along] for row in points],
                [row[key] for row in points],
                style,
                ms=4,
                color=COLORS[method],
                label=name,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.set_xticks([], minor=True)
    _plain(axes.yaxis)
    axes.set_xlabel({"L": "steps", "w": "numbers a sample"}[along])
    axes.set_title(title)
    _legend(axes)


def _fastest(rows: Sequence[Row]) -> Row:
    return min((row for row in rows if "ms" in row), key=lambda row: float(row["ms"]))


def _plain(axis: Any) -> None:
    """Powers of ten as numbers."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _legend(axes: Any) -> None:
    """A legend, with room for it above the lines."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.4)
    axes.legend(fontsize=7, handlelength=3.2, ncols=2, loc="upper left")
