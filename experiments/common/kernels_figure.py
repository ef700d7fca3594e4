"""The figure of `python -m experiments kernels`: launches of every program, and the time that they take at the least."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common.plots import figure

Row = dict[str, Any]

COLORS = [f"C{number}" for number in (0, 1, 2, 3, 4, 5, 6, 8, 9)]  # without the grey one
PANELS = {"launches": "launches", "latency ms": "launches and waits of the host [ms]"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """A line for each case: sequential programs in grey, parallel ones in colours; crosses are what `depth` predicts.

    Args:
        rows: of the experiment.
        path: of the picture.
    """
    cases = list(dict.fromkeys(map(named, rows)))
    programs = list(
        dict.fromkeys(row["program"] for row in sorted(rows, key=lambda row: not row["sequential"]))
    )
    loops = {row["program"] for row in rows if row["sequential"]}
    with figure(path, columns=len(PANELS), height=1.4 + 0.32 * len(cases)) as panels:
        for panel, (key, title) in zip(panels, PANELS.items(), strict=True):
            for place, name in enumerate(programs):
                mine = [row for row in rows if row["program"] == name]
                color = f"{0.25 * place:.2f}" if name in loops else COLORS[place % len(COLORS)]
                lines = [cases.index(named(row)) for row in mine]
                panel.plot(
                    [row[key] for row in mine],
                    lines,
                    "s" if name in loops else "o",
                    color=color,
                    label=name,
                )
                if key == "latency ms":
                    panel.plot([row["predicted ms"] for row in mine], lines, "x", color=color)
            panel.set(title=title, xscale="log", ylim=(max(len(cases), 1) - 0.5, -0.5))
            panel.set_yticks(range(len(cases)), cases)
        panels[1].set_yticklabels([])
        if programs:
            panels[0].figure.legend(
                *panels[0].get_legend_handles_labels(),
                loc="outside lower center",
                ncols=5,
                fontsize=7,
            )


def named(row: Row) -> str:
    """A case in a few words: "tanh, L = 1024, w = 8, forward"."""
    kind = row.get("kind") or row.get("data") or ""
    return f"{kind}, L = {row['L']:,}, w = {row['w']}, {row['direction']}"
