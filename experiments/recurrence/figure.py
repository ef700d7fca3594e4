"""The figure of `python -m experiments recurrence`.

The time of every solver against L, by the width of the blocks.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.plots import figure, series
from experiments.bench.summary import is_benchmark
from experiments.bench.table import Row


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel for each width: sequential programs in grey, parallel ones in colours.

    Dashed as predicted.

    Of several kinds and batches the one that has most rows is drawn.

    Args:
        rows: of the bench, and others, which are left out.
        path: of the picture.
    """
    keys = ("kind", "batch", "direction")
    rows = [row for row in rows if is_benchmark(row)]
    which = Counter(tuple(row[key] for key in keys) for row in rows).most_common(1)
    rows = [row for row in rows if tuple(row[key] for key in keys) == which[0][0]]
    widths, lengths = (sorted({row[key] for row in rows}) for key in ("w", "L"))
    loops = list(dict.fromkeys(row["program"] for row in rows if row["baseline"]))
    solvers = list(dict.fromkeys(row["program"] for row in rows if not row["baseline"]))
    colors = {name: f"{0.75 * k / len(loops):.2f}" for k, name in enumerate(loops)}  # greys
    colors |= {name: f"C{k}" for k, name in enumerate(solvers)}
    with figure(path, columns=max(1, len(widths)), height=4) as panels:
        for panel, width in zip(panels, widths, strict=False):
            for name, color in colors.items():
                mine = [row for row in rows if (row["w"], row["program"]) == (width, name)]
                right = [row for row in mine if "speedup" in row]
                panel.plot([], [], "o-", ms=4, color=color, label=name)
                series(panel, right, "L", "ms", "o-", ms=4, color=color)
                series(panel, mine, "L", "predicted ms", "--", lw=0.8, color=color)
            title = f"{which[0][0][0]} blocks, w = {width}"
            panel.set(title=title, xlabel="L", xscale="log", yscale="log")
            panel.set_xticks(lengths, lengths)
            panel.set_xticks([], minor=True)
            panel.yaxis.set_major_formatter("{x:g}")
        panels[0].set_ylabel("ms")
        panels[-1].plot([], [], "--", color="0.4", linewidth=1, label="predicted")
        panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
