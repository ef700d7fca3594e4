"""The figure of `python -m experiments kernels`.

Launches of every program, and the time that they take at the least.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.bench.plots import figure
from experiments.bench.table import Row

COLORS = [f"C{number}" for number in (0, 1, 2, 3, 4, 5, 6, 8, 9)]  # without the grey one
PANELS = {"launches": "launches", "latency ms": "launches and waits of the host [ms]"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """A line for each case: sequential programs in grey, parallel ones in colours.

    Crosses are what `depth` predicts.

    Args:
        rows: of the experiment.
        path: of the picture.
    """
    cases = list(dict.fromkeys(map(named, rows)))
    is_loop = {row["program"]: row["sequential"] for row in rows}
    programs = sorted(is_loop, key=lambda name: not is_loop[name])
    with figure(path, columns=len(PANELS), height=1.4 + 0.32 * len(cases)) as panels:
        for panel, (key, title) in zip(panels, PANELS.items(), strict=True):
            for k, name in enumerate(programs):
                mine = [row for row in rows if row["program"] == name]
                color = f"{0.25 * k:.2f}" if is_loop[name] else COLORS[k % len(COLORS)]
                lines, style = (
                    [cases.index(named(row)) for row in mine],
                    "s" if is_loop[name] else "o",
                )
                panel.plot([row[key] for row in mine], lines, style, color=color, label=name)
                if key == "latency ms":
                    panel.plot([row["predicted ms"] for row in mine], lines, "x", color=color)
            panel.set(title=title, xscale="log", ylim=(max(len(cases), 1) - 0.5, -0.5))
            panel.set_yticks(range(len(cases)), cases)
        panels[1].set_yticklabels([])
        if programs:
            handles = panels[0].get_legend_handles_labels()
            panels[0].figure.legend(*handles, loc="outside lower center", ncols=5, fontsize=7)


def named(row: Row) -> str:
    """A case in a few words: "tanh, L = 1024, w = 8, forward"."""
    kind = row.get("kind") or row.get("data") or ""
    return f"{kind}, L = {row['L']:,}, w = {row['w']}, {row['direction']}"
