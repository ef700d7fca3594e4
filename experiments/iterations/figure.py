"""The pictures of `python -m experiments iterations`."""

from collections.abc import Sequence
from typing import Any

from experiments.bench.plots import (
    BLUE,
    BROWN,
    COLORS,
    GREEN,
    RED,
    SMALL,
    YELLOW,
    Figures,
    legend,
    loops,
    plain_numbers,
    series,
    sheet,
    styled,
    values_as_ticks,
)
from experiments.bench.programs import SCAN
from experiments.bench.table import Row

FORMS = {  # colour and marker
    "dense": (BLUE, "o"),
    "blocks": (GREEN, "s"),
    "diagonal": (YELLOW, "D"),
    "4 probes": (BROWN, "d"),
    "scalar": (RED, "^"),
    "zero": ("0.5", "v"),
}
METHODS = {"plain": (BLUE, "o"), "trust region": (RED, "s")}  # with damping, and without
SMALLEST, LARGEST = 1e-8, 1e2  # errors that are drawn


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Iterations and speed by chain, errors by iteration, time and memory by width, damping."""
    forms, accuracy, width, damping = (
        [row for row in rows if row["part"] == part]
        for part in ("forms", "accuracy", "width", "damping")
    )
    found: Figures = {}
    solved = [row for row in forms if _base(row["program"]) in FORMS]
    if any("iterations" in row for row in solved):
        title = "Iterations of Newton's method by chain and linearisation (fewer is better)"
        found["forms"] = _by_chain(title, solved, "iterations", "iterations", FORMS)
    if any("speedup" in row for row in solved):
        title = "Forward pass by Newton's method: speedup over the best loop"
        said = f"speedup over the fastest of {loops(forms)} [times]\nright of 1: deeppcr is faster"
        found["speed"] = _by_chain(title, solved, "speedup", said, FORMS)
    if accuracy:
        found["error"] = _errors(accuracy)
    if right := [row for row in accuracy if "digits right" in row]:
        found["accuracy"] = _right(right)
    if any("ms" in row for row in width):
        found["width"] = _by_width(width)
    if tried := [row for row in damping if row["program"] in METHODS and "iterations" in row]:
        title = "Chains that are hard to solve: iterations with and without damping"
        said = "iterations (fewer is better)"
        found["damping"] = _by_chain(title, tried, "iterations", said, METHODS)
    return found


def _base(program: str) -> str:
    return "blocks" if program.startswith("blocks") else program


def _chain(row: Row) -> str:
    return f"{row['chain']}, {row['w']} x {row['L']:,}"


def _by_chain(
    title: str, rows: Sequence[Row], key: str, said: str, looks: dict[str, tuple[str, str]]
) -> Any:
    """A line for every chain, a marker for every form.

    Open where the chain had to be finished sequentially.
    """
    rows = [row for row in rows if key in row]
    chains = list(dict.fromkeys(map(_chain, rows)))
    drawing, (axes,) = sheet(title, height=1.5 + 0.36 * len(chains))
    axes.set_xscale("log")
    used = [form for form in looks if any(_base(row["program"]) == form for row in rows)]
    for k, form in enumerate(used):
        color, marker = looks[form]
        axes.plot([], [], marker, color=color, label=form)
        aside = 0.13 * (k - (len(used) - 1) / 2)  # so that equal numbers do not hide each other
        for row in rows:
            if _base(row["program"]) == form:
                fill = color if row.get("ended") == "converged" else "white"
                place = row[key], chains.index(_chain(row)) + aside
                axes.plot(*place, marker, color=color, markerfacecolor=fill)
    if any(row.get("ended") != "converged" for row in rows):
        axes.plot([], [], "o", color="0.4", mfc="white", label="open: finished sequentially")
    if key == "speedup":
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xlim(right=max(2, axes.get_xlim()[1]))
    for y in range(1, len(chains)):
        axes.axhline(y - 0.5, color="0.85", lw=0.8)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=said, ylim=(len(chains) - 0.5, -0.5))
    plain_numbers(axes.xaxis)
    axes.set_yticks(range(len(chains)), chains)
    axes.set_ylabel("chain, width x length")
    legend(drawing, 4)
    return drawing


def _errors(rows: Sequence[Row]) -> Any:
    """Errors against iterations: a colour for every chain, a panel for every form."""
    forms = list(dict.fromkeys(row["form"] for row in rows))
    title = "Error after each iteration, by linearisation (down is better)"
    drawing, panels = sheet(title, len(forms), height=3.8, sharey=True)
    chains = list(dict.fromkeys(map(_chain, rows)))
    for axes, form in zip(panels, forms, strict=True):
        for color, chain in zip(COLORS, chains, strict=False):
            mine = [row for row in rows if _chain(row) == chain and row["form"] == form]
            drawn = [min(max(row.get("error", LARGEST), SMALLEST), LARGEST) for row in mine]
            look = {"color": color, "lw": 1.3, "ms": 4, "label": chain}
            axes.plot([row["k"] for row in mine], drawn, "o-", **look)
        axes.set(yscale="log", ylim=(SMALLEST / 2, 2 * LARGEST), title=form)
        _count_iterations(axes, max(row["k"] for row in rows))
    said = f"error relative to the sequential\nprogram [ratio, at most {LARGEST:.0f}]"
    panels[0].set_ylabel(said)
    legend(drawing, 3)
    return drawing


def _right(rows: Sequence[Row]) -> Any:
    """The share of digits that a classifier gets right, against iterations."""
    title = f"Digits right by a residual network of {rows[0]['L']} layers, if stopped early"
    drawing, (axes,) = sheet(title, height=3.2)
    for form in dict.fromkeys(row["form"] for row in rows):
        mine = [row | {"%": 100 * row["digits right"]} for row in rows if row["form"] == form]
        color, marker = FORMS[form]
        series(axes, mine, "k", "%", f"{marker}-", color=color, label=form)
    _count_iterations(axes, max(row["k"] for row in rows))
    axes.set_ylabel("digits right [%]")
    legend(drawing)
    return drawing


def _count_iterations(axes: Any, most: int) -> None:
    """An axis of iterations, from 0 on."""
    axes.set_xscale("symlog", linthresh=2, linscale=0.8)
    axes.set_xlim(-0.25, 1.2 * most)
    values_as_ticks(axes.xaxis, [tick for tick in (0, 1, 2, 4, 8, 16, 32, 64) if tick <= most])
    axes.set_xlabel("iterations")


def _by_width(rows: Sequence[Row]) -> Any:
    """A line for every form, and one for plain `jax.lax.scan`."""
    first = rows[0]
    title = f"Forward pass of a {first['chain'].upper()}, L = {first['L']:,} (down is better)"
    drawing, panels = sheet(title, 2, height=3.6)
    keys = {"ms": ("time of a solve", "time [ms]"), "temp MB": ("memory", "temporary arrays [MB]")}
    for axes, (key, (what, unit)) in zip(panels, keys.items(), strict=True):
        for program in dict.fromkeys(row["program"] for row in rows):
            mine = [row for row in rows if row["program"] == program]
            if program == SCAN:
                series(axes, mine, "w", key, "x--", color="black", label=program)
            elif not mine[0]["baseline"]:
                color, marker = FORMS[_base(program)]
                series(axes, mine, "w", key, f"{marker}-", color=color, label=program)
        axes.set(xscale="log", yscale="log", title=what, ylabel=unit, xlabel="width of the state")
        plain_numbers(axes.yaxis)
        values_as_ticks(axes.xaxis, sorted({row["w"] for row in rows}))
    legend(drawing, fontsize=SMALL)
    return drawing
