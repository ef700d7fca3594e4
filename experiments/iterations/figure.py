"""The figure of `python -m experiments iterations`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.plots import figure, halves, plain_numbers, series
from experiments.bench.programs import SCAN
from experiments.bench.table import Row

FORMS = {  # colour and marker
    "dense": ("C0", "o"),
    "blocks": ("C2", "s"),
    "diagonal": ("C1", "D"),
    "4 probes": ("C8", "d"),
    "scalar": ("C3", "^"),
    "zero": ("C7", "v"),
}
DASHES = {"dense": "-", "diagonal": "--", "scalar": ":"}
SMALLEST, LARGEST = 1e-8, 1e2  # errors that are drawn


def draw(rows: Sequence[Row], path: Path) -> None:
    """By chain and form: iterations and speed.

    By iterations: error and what a classifier gets right. By width: time, memory.
    """
    forms, accuracy, width = (
        [row for row in rows if row["part"] == part] for part in ("forms", "accuracy", "width")
    )
    with figure(path, columns=3, height=7.6) as columns:
        (iterations, speed), (errors, right), (times, memory) = map(halves, columns)
        _by_chain(iterations, forms, "iterations")
        iterations.set_title("iterations (hollow: finished sequentially)")
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
    """A column for every chain, a marker for every form.

    Hollow where the chain had to be finished sequentially.
    """
    chains = list(dict.fromkeys(map(_chain, rows)))
    for k, (form, (color, marker)) in enumerate(FORMS.items()):
        look = {"color": color, "markersize": 4.5}
        axes.plot([], [], marker, label=form, **look)
        aside = 0.12 * (k - (len(FORMS) - 1) / 2)  # so that equal numbers do not hide each other
        for row in rows:
            if key in row and _base(row["program"]) == form:
                fill = "full" if row.get("ended") == "converged" else "none"
                x = chains.index(_chain(row)) + aside
                axes.plot(x, row[key], marker, fillstyle=fill, **look)
    if any(key in row for row in rows):  # a logarithm of nothing fails
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    axes.set_xticks(range(len(chains)), chains, rotation=50, ha="right", rotation_mode="anchor")
    axes.tick_params("x", labelsize=7)


def _errors(axes: Any, rows: Sequence[Row]) -> None:
    """Lines of error against iterations: a colour for every chain, a dash for every form."""
    for number, chain in enumerate(dict.fromkeys(map(_chain, rows))):
        look = {"color": f"C{number}", "marker": ".", "linewidth": 1.2}
        axes.plot([], [], color=f"C{number}", label=chain)
        for form, dash in DASHES.items():
            mine = [row for row in rows if _chain(row) == chain and row["form"] == form]
            drawn = [min(max(row.get("error", LARGEST), SMALLEST), LARGEST) for row in mine]
            axes.plot([row["k"] for row in mine], drawn, dash, **look)
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
        mine = [row for row in rows if row["form"] == form]
        look = {"color": FORMS[form][0], "marker": ".", "label": form}
        series(axes, mine, "k", "digits right", dash, **look)
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
    for program in dict.fromkeys(row["program"] for row in rows):
        mine = [row for row in rows if row["program"] == program]
        if program == SCAN:
            series(axes, mine, "w", key, "--", color="black", label=program)
        elif not mine[0]["baseline"]:
            series(axes, mine, "w", key, "o-", color=FORMS[_base(program)][0], label=program)
    if any(key in row for row in rows):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("width of the state")
    _legend(axes)


def _legend(axes: Any, **options: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**options)
