"""The pictures of `python -m experiments diffusion`.

The digits after each iteration, and iterations and time against steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.bench.plots import Figures, lines, loops, sheet, styled
from experiments.bench.table import Row

METHODS = {  # and their names in a picture
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
        found["steps"] = _by(along_steps, "L", "denoising steps", of)
        if len({row["w"] for row in along_sizes}) > 1:
            found["size"] = _by(
                along_sizes, "w", "numbers a sample", f"{steps} steps, batch {batch}"
            )
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
    """How far samples are from the sequential ones, by iterations."""
    mine = [row | {"of": METHODS.get(row["program"].partition(", ")[0])} for row in rows]
    mine = [row for row in mine if row["of"] and row.get("W1 to sequential")]
    title = f"Distance to the sequential samples, {rows[0]['L']} steps (down is better)"
    said = "Wasserstein-1 distance\n[1 is half the range of a pixel]"
    panels = {"black: sequential samples of other noise": (mine, "W1 to sequential", said)}
    other = rows[0]["W1, other noise"]
    return lines(title, panels, "iterations", "iterations", key="of", at=other)


def _by(rows: Sequence[Row], along: str, said: str, of: str) -> Any:
    """Iterations and time of every method, and the time of the fastest loop."""
    fastest: dict[Any, Row] = {}
    for row in sorted((row for row in rows if row["baseline"] and "ms" in row), key=_ms):
        fastest.setdefault(row[along], row | {"program": f"fastest of {loops(rows)}"})
    mine = [row | {"program": METHODS[row["program"]]} for row in rows if row["program"] in METHODS]
    panels = {
        "iterations": (mine, "iterations", "iterations until converged"),
        "time": ([*fastest.values(), *mine], "ms", "time [ms]"),
    }
    return lines(f"Diffusion sampling, {of} (down is better)", panels, along, said, height=4.2)


def _ms(row: Row) -> float:
    return float(row["ms"])
