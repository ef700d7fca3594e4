"""The pictures of `python -m experiments diffusion`.

The digits after each iteration, and iterations and time against steps.
"""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np

from experiments.bench import plots
from experiments.bench.plots import BLUE, GREEN, PINK, RED, Figures, sheet, styled

Row = dict[str, Any]
SEQUENTIAL = "fastest of "  # the loops
LOOKS = {
    SEQUENTIAL: ("black", "x"),
    "dense": (BLUE, "o"),
    "diagonal": (GREEN, "D"),
    "gaussian": (PINK, "^"),
    "picard": (RED, "s"),
}
METHODS = {
    "dense": "dense Newton",
    "diagonal": "diagonal Newton",
    "gaussian": "Gaussian",
    "picard": "Picard",
}
SHOWN = ("dense", "picard")  # methods whose samples are drawn
PIXELS = 8  # of a digit, each way
GAP = 2  # pixels between two


@styled
def pictures(rows: Sequence[Row], gallery: Mapping[str, np.ndarray] | None = None) -> Figures:
    """Iterations and times by steps and by size; samples by iteration, and how far they are.

    Args:
        rows: of all cases.
        gallery: images ``[n, 64]`` of the same samples by program: "lax.scan", "dense, 1",
            "dense, converged", ... They are not in the result file: without them there is no
            picture of samples.
    """
    speed, stopped = ([row for row in rows if row["part"] == part] for part in ("speed", "stopped"))
    stopped = [row for row in stopped if "rtol" not in row["program"]]  # by number of iterations
    found: Figures = {}
    if speed:
        batch, size, steps = (_usual(speed, key) for key in ("batch", "w", "L"))
        along_steps = [row for row in speed if (row["batch"], row["w"]) == (batch, size)]
        along_sizes = [row for row in speed if (row["batch"], row["L"]) == (batch, steps)]
        of = f"{size} numbers a sample, batch {batch}"
        title = f"Diffusion sampling, {of} (down is better)"
        panels = {"iterations": "iterations until converged", "ms": "time [ms]"}
        found["steps"] = _lines(title, along_steps, "L", panels)
        if len({row["w"] for row in along_sizes}) > 1:
            title = f"Diffusion sampling, {steps} steps, batch {batch} (down is better)"
            found["size"] = _lines(title, along_sizes, "w", panels)
    if stopped:
        last = {row["program"]: row for row in stopped if row["w"] == stopped[-1]["w"]}
        if gallery:
            found["samples"] = _samples(gallery, last)
        found["distance"] = _distances(list(last.values()))
    return found


def _usual(rows: Sequence[Row], key: str) -> Any:
    """The value that most rows have: that of the case around which others are varied."""
    values = [row[key] for row in rows]
    return max(values, key=values.count)


def _samples(gallery: Mapping[str, np.ndarray], rows: Mapping[str, Row]) -> Any:
    """By method the noise, a row of digits for every number of iterations, the sequential ones."""
    shown: dict[str, dict[str, np.ndarray]] = {}
    for method in SHOWN:
        runs = [row for name, row in rows.items() if name.startswith(f"{method}, ")]
        runs = [row for row in runs if len(gallery.get(row["program"], ()))]
        if runs:
            strips = {_after(row): gallery[row["program"]] for row in runs}
            first, last = gallery["noise"], gallery["lax.scan"]
            shown[method] = {"noise": first, **strips, "sequential": last}
    title = f"Samples of {rows['lax.scan']['L']} steps, if stopped after some iterations"
    drawing, panels = sheet(title, len(shown), height=0.65 + 0.25 * max(map(len, shown.values())))
    for axes, (method, strips) in zip(panels, shown.items(), strict=True):
        draw_digits(axes, strips)
        axes.set_title(METHODS[method])
        axes.set_anchor("N")
    panels[0].set_ylabel("iterations")
    return drawing


def _after(row: Row) -> str:
    count = row["iterations"]
    return f"{count}, converged" if row["ended"] == "converged" else f"{count}"


def draw_digits(axes: Any, rows: Mapping[str, Any]) -> None:
    """Rows of images ``[n, 64]``, each beside its name."""
    images = np.stack([*rows.values()]).reshape(len(rows), -1, PIXELS, PIXELS)
    around = np.pad(images, ((0, 0), (0, 0), (0, GAP), (0, GAP)), constant_values=-1)
    drawn = around.transpose(0, 2, 1, 3).reshape(len(rows) * (PIXELS + GAP), -1)
    axes.imshow(np.clip(drawn, -1, 1), cmap="gray_r")
    middles = [(PIXELS + GAP) * k + PIXELS / 2 - 0.5 for k in range(len(rows))]
    axes.set_yticks(middles, list(rows))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _distances(rows: Sequence[Row]) -> Any:
    """How far samples are from the sequential ones, by iterations.

    Beside it how far those of other noise are.
    """
    first = rows[0]
    title = f"Distance to the sequential samples, {first['L']} steps (down is better)"
    drawing, (axes,) = sheet(title, height=3.6)
    for method, name in METHODS.items():
        mine = [row for row in rows if row["program"].startswith(f"{method}, ")]
        color, marker = LOOKS[method]
        look = {"color": color, "label": name}
        plots.series(axes, mine, "iterations", "W1 to sequential", f"{marker}-", **look)
    axes.set(xscale="log", yscale="log", xlabel="iterations")
    plots.level(
        axes, "sequential samples of other noise", at=first["W1, other noise"], side="right"
    )
    axes.set_ylim(top=4 * first["W1, other noise"])
    axes.set_ylabel("Wasserstein-1 distance\n[1 is half the range of a pixel]")
    most = max(row.get("iterations") or 1 for row in rows)
    plots.values_as_ticks(axes.xaxis, [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= max(most, 2)])
    plots.legend(drawing)
    return drawing


def _lines(title: str, rows: Sequence[Row], along: str, panels: Mapping[str, str]) -> Any:
    """A line for every method, dashed with a coarse guess, and one for the fastest loop."""
    names = dict.fromkeys(row["program"] for row in rows)
    lines = {name: [row for row in rows if row["program"] == name] for name in names}
    fastest: dict[Any, Row] = {}
    timed = [row for row in rows if row["baseline"] and "ms" in row]
    for row in sorted(timed, key=lambda row: float(row["ms"])):
        fastest.setdefault(row[along], row)
    lines[SEQUENTIAL] = list(fastest.values())
    drawing, drawn = sheet(title, len(panels), height=4.2)
    for axes, (key, said) in zip(drawn, panels.items(), strict=True):
        for name, points in lines.items():
            method = name.partition(", coarse")[0]
            if method in LOOKS:
                color, marker = LOOKS[method]
                style, label = "-" if method == name else "--", METHODS.get(method, method)
                label += (
                    fill(plots.loops(rows), 36) if name == SEQUENTIAL else name.removeprefix(method)
                )
                face = color if method == name else "white"
                look = {"color": color, "markerfacecolor": face, "label": label}
                plots.series(axes, points, along, key, marker + style, **look)
        axes.set(xscale="log", yscale="log", ylabel=said)
        axes.set_xlabel({"L": "denoising steps", "w": "numbers a sample"}[along])
        plots.values_as_ticks(axes.xaxis, sorted({row[along] for row in rows}))
        plots.plain_numbers(axes.yaxis)
    plots.legend(drawing, 2)
    return drawing
