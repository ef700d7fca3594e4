"""The figure of `python -m experiments decide`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.plots import figure, halves

Row = dict[str, Any]

DIRECTIONS = ("forward", "gradient")
LARGEST = 7  # powers of two, up or down: where the colours end


def draw(rows: Sequence[Row], path: Path) -> None:
    """Speedups of the best parallel candidate over (L, w), with the line of break-even; and the regret of what auto chooses."""
    cells = [row for row in rows if row["part"] == "map"]
    places = dict.fromkeys(key for row in cells for key in row if key.startswith("predicted, "))
    names = ["realised", *places] if cells else []
    regret = [row for row in rows if row["part"] == "regret" and "regret %" in row]
    with figure(path, columns=len(names) + bool(regret) or 1, height=6.4) as columns:
        for name, axes in zip(names, columns, strict=False):
            for direction, half in zip(DIRECTIONS, halves(axes), strict=True):
                _map(half, [row for row in cells if row["direction"] == direction], name, direction)
        if regret:
            for direction, half in zip(DIRECTIONS, halves(columns[-1]), strict=True):
                _regret(half, [row for row in regret if row["direction"] == direction], direction)


def _map(axes: Any, rows: Sequence[Row], name: str, direction: str) -> None:
    widths, lengths = (sorted({row[key] for row in rows}) for key in ("w", "L"))
    powers = np.full((len(widths), len(lengths)), np.nan)
    for row in rows:
        powers[widths.index(row["w"]), lengths.index(row["L"])] = np.log2(row.get(name, np.nan))
    axes.grid(visible=False)
    axes.imshow(powers, origin="lower", cmap="RdBu", vmin=-LARGEST, vmax=LARGEST, aspect="auto")
    for (i, j), power in np.ndenumerate(powers):
        if np.isnan(power):  # it was not measured
            continue
        speedup = 2.0**power
        text = (
            f"{speedup:.0f}"
            if speedup >= 9.5
            else f"{speedup:.1f}"
            if speedup >= 0.1
            else f"{speedup:.2f}"
        )
        axes.text(
            j,
            i,
            text,
            ha="center",
            va="center",
            fontsize=7,
            color="white" if abs(power) > LARGEST / 2 else "black",
        )
    if min(powers.shape) > 1 and (powers < 0).any() and (powers > 0).any():
        axes.contour(powers, levels=[0.0], colors="black", linewidths=2)
    axes.set_xticks(range(len(lengths)), lengths, fontsize=7)
    axes.set_yticks(range(len(widths)), widths, fontsize=7)
    axes.set_xlabel("L")
    axes.set_ylabel("units")
    where = name.removeprefix("predicted, ").replace("here", "this device")
    axes.set_title(
        f"{direction}: " + ("realised here" if name == "realised" else f"predicted, {where}")
    )


def _regret(axes: Any, rows: Sequence[Row], direction: str) -> None:
    for k, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
        found = [row for row in rows if row["kind"] == kind]
        axes.plot(
            [row["lax.scan us"] for row in found],
            [row["regret %"] for row in found],
            "o",
            color=f"C{k}",
            ms=4,
            label=kind,
        )
    axes.axhline(15, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=-0.5)
    axes.set_xlabel("time of jax.lax.scan [us]")
    axes.set_title(f"{direction}: regret of auto [%]")
    axes.legend(fontsize=7)
