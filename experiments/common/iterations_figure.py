"""The figure of `python -m experiments iterations`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common.baselines import SCAN
from experiments.common.plots import figure, halves

Row = dict[str, Any]

COLORS = {
    "dense": "C0",
    "blocks": "C2",
    "diagonal": "C1",
    "4 probes": "C8",
    "scalar": "C3",
    "zero": "C7",
}
MARKERS = {
    "dense": "o",
    "blocks": "s",
    "diagonal": "D",
    "4 probes": "d",
    "scalar": "^",
    "zero": "v",
}
DASHES = {"dense": "-", "diagonal": "--", "scalar": ":"}
SMALLEST, LARGEST = 1e-8, 1e2  # errors that are drawn


def draw(rows: Sequence[Row], path: Path) -> None:
    """By chain and form: iterations and speed. By iterations: error and what a classifier gets right. By width: time, memory."""
    forms, accuracy, width = (
        [row for row in rows if row["part"] == part] for part in ("forms", "accuracy", "width")
    )
    with figure(path, columns=3, height=7.6) as columns:
        (iterations, speed), (errors, right), (times, memory) = map(halves, columns)
        _by_chain(iterations, forms, "iterations")
        iterations.set_title("iterations (hollow: finished step by step)")
        iterations.set_ylim(top=6 * iterations.get_ylim()[1])  # room for the legend
        _legend(iterations, ncols=3, fontsize=7, loc="upper center")
        _by_chain(speed, forms, "over lax.scan")
        speed.axhline(1, color="black", linewidth=1)
        speed.set_title("speed, relative to jax.lax.scan")
        _errors(errors, accuracy)
        _right(right, [row for row in accuracy if "digits right" in row])
        _by_width(times, width, "ms")
        times.set_title("time of a solve [ms], GRU" + _length(width))
        _by_width(memory, width, "temp MB")
        memory.set_title("temporary memory [MB], GRU" + _length(width))


def _base(program: str) -> str:
    return "blocks" if program.startswith("blocks") else program


def _chain(row: Row) -> str:
    return f"{row['chain']} {row['w']}x{row['L']}"


def _length(rows: Sequence[Row]) -> str:
    return f", L = {rows[0]['L']}" if rows else ""


def _by_chain(axes: Any, rows: Sequence[Row], key: str) -> None:
    """A column for every chain, a marker for every form: hollow where the chain had to be finished step by step."""
    chains = list(dict.fromkeys(map(_chain, rows)))
    for place, (form, marker) in enumerate(MARKERS.items()):
        axes.plot([], [], marker, color=COLORS[form], markersize=4.5, label=form)
        aside = 0.12 * (
            place - (len(MARKERS) - 1) / 2
        )  # so that equal numbers do not hide each other
        for row in rows:
            if key in row and _base(row["program"]) == form:
                fill = "full" if row.get("ended") == "converged" else "none"
                x = chains.index(_chain(row)) + aside
                axes.plot(x, row[key], marker, color=COLORS[form], fillstyle=fill, markersize=4.5)
    if any(key in row for row in rows):  # a logarithm of nothing fails
        axes.set_yscale("log")
        _plain(axes.yaxis)
    axes.set_xticks(range(len(chains)), chains, rotation=50, ha="right", rotation_mode="anchor")
    axes.tick_params("x", labelsize=7)


def _errors(axes: Any, rows: Sequence[Row]) -> None:
    """Lines of error against iterations: a colour for every chain, a dash for every form."""
    for number, chain in enumerate(dict.fromkeys(map(_chain, rows))):
        axes.plot([], [], color=f"C{number}", label=chain)
        for form, dash in DASHES.items():
            points = [row for row in rows if _chain(row) == chain and row["form"] == form]
            drawn = [min(max(row.get("error", LARGEST), SMALLEST), LARGEST) for row in points]
            axes.plot(
                [row["k"] for row in points],
                drawn,
                dash,
                color=f"C{number}",
                marker=".",
                linewidth=1.2,
            )
    for form, dash in DASHES.items():
        axes.plot([], [], dash, color="0.3", label=form)
    axes.set_yscale("log")
    axes.set_ylim(SMALLEST / 2, 2 * LARGEST)
    _count_iterations(axes)
    axes.set_title(f"error against the sequential program (at most {LARGEST:.0f})")
    _legend(axes, fontsize=6.5, loc="lower left", labelspacing=0.25)


def _right(axes: Any, rows: Sequence[Row]) -> None:
    """The share of digits that a classifier gets right, against iterations."""
    for form, dash in DASHES.items():
        points = [row for row in rows if row["form"] == form]
        axes.plot(
            [r["k"] for r in points],
            [r["digits right"] for r in points],
            dash,
            color=COLORS[form],
            marker=".",
            label=form,
        )
    _count_iterations(axes)
    axes.set_title("share of digits right, residual network" + _length(rows))
    _legend(axes)


def _count_iterations(axes: Any) -> None:
    """An axis of iterations, from 0 on."""
    axes.set_xscale("symlog", linthresh=4, linscale=1.5)
    axes.set_xlim(left=-0.2)
    axes.set_xticks(
        [tick for tick in (0, 1, 2, 3, 4, 8, 16, 32, 64) if tick <= max(4, axes.dataLim.x1)]
    )
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("iterations")


def _by_width(axes: Any, rows: Sequence[Row], key: str) -> None:
    """A line for every form, and one for plain `jax.lax.scan`."""
    for program in dict.fromkeys(
        row["program"] for row in rows if not row["baseline"] or row["program"] == SCAN
    ):
        points = [row for row in rows if row["program"] == program and key in row]
        style = (
            {"color": "black", "linestyle": "--"}
            if program == SCAN
            else {"color": COLORS[_base(program)], "marker": "o"}
        )
        axes.plot(
            [row["w"] for row in points], [row[key] for row in points], label=program, **style
        )
    if any(key in row for row in rows):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _plain(axes.yaxis)
        axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("width of the state")
    _legend(axes)


def _plain(axis: Any) -> None:
    """Powers of ten as numbers."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _legend(axes: Any, **options: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**options)
