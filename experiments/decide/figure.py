"""The figure of `python -m experiments decide`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.plots import break_even, figure, halves, number_cells
from experiments.bench.table import Row

DIRECTIONS = ("forward", "gradient")
LARGEST = 7  # powers of two, up or down: where the colours end


def draw(rows: Sequence[Row], path: Path) -> None:
    """Speedups of the best parallel candidate over (L, w), with the line of break-even.

    And the regret of what auto chooses.
    """
    cells = [row for row in rows if row["part"] == "map"]
    devices = dict.fromkeys(key for row in cells for key in row if key.startswith("predicted, "))
    names = ["realised", *devices] if cells else []
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
    look = {"origin": "lower", "cmap": "RdBu", "aspect": "auto"}
    axes.imshow(powers, vmin=-LARGEST, vmax=LARGEST, **look)
    number_cells(axes, 2.0**powers, abs(powers) > LARGEST / 2)
    break_even(axes, powers)
    axes.set_xticks(range(len(lengths)), lengths, fontsize=7)
    axes.set_yticks(range(len(widths)), widths, fontsize=7)
    axes.set(xlabel="L", ylabel="units")
    where = name.removeprefix("predicted, ").replace("here", "this device")
    said = "realised here" if name == "realised" else f"predicted, {where}"
    axes.set_title(f"{direction}: {said}")


def _regret(axes: Any, rows: Sequence[Row], direction: str) -> None:
    for k, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
        found = [row for row in rows if row["kind"] == kind]
        x, y = ([row[key] for row in found] for key in ("lax.scan us", "regret %"))
        axes.plot(x, y, "o", color=f"C{k}", ms=4, label=kind)
    axes.axhline(15, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=-0.5)
    axes.set_xlabel("time of jax.lax.scan [us]")
    axes.set_title(f"{direction}: regret of auto [%]")
    axes.legend(fontsize=7)
