"""The figure of `python -m experiments recurrence`: the time of every solver against L, by the width of the blocks."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common.plots import figure
from experiments.common.summary import is_race

Row = dict[str, Any]


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel for each width: sequential programs in grey, parallel ones in colours; dashed as predicted.

    Of several kinds and batches the one that has most rows is drawn.

    Args:
        rows: of races, and others, which are left out.
        path: of the picture.
    """
    rows = [row for row in rows if is_race(row)]
    which = Counter((row["kind"], row["batch"], row["direction"]) for row in rows).most_common(1)
    rows = [row for row in rows if (row["kind"], row["batch"], row["direction"]) == which[0][0]]
    widths = sorted({row["w"] for row in rows})
    sequential = list(dict.fromkeys(row["program"] for row in rows if row["baseline"]))
    parallel = list(dict.fromkeys(row["program"] for row in rows if not row["baseline"]))
    with figure(path, columns=max(1, len(widths)), height=4) as panels:
        for panel, width in zip(panels, widths, strict=False):
            for number, name in enumerate(sequential):
                shade = f"{0.75 * number / len(sequential):.2f}"  # a grey, from black on
                _line(
                    panel,
                    [row for row in rows if (row["w"], row["program"]) == (width, name)],
                    name,
                    shade,
                )
            for number, name in enumerate(parallel):
                _line(
                    panel,
                    [row for row in rows if (row["w"], row["program"]) == (width, name)],
                    name,
                    f"C{number}",
                )
            panel.set(
                title=f"{which[0][0][0]} blocks, w = {width}",
                xlabel="L",
                xscale="log",
                yscale="log",
            )
            lengths = sorted({row["L"] for row in rows})
            panel.set_xticks(lengths, lengths)
            panel.set_xticks([], minor=True)
            panel.yaxis.set_major_formatter("{x:g}")
        panels[0].set_ylabel("ms")
        panels[-1].plot([], [], "--", color="0.4", linewidth=1, label="predicted")
        panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def _line(axes: Any, rows: Sequence[Row], name: str, color: str) -> None:
    rows = sorted(rows, key=lambda row: int(row["L"]))
    measured = [row for row in rows if "speedup" in row]
    predicted = [row for row in rows if "predicted ms" in row]
    axes.plot(
        [row["L"] for row in measured],
        [row["ms"] for row in measured],
        "o-",
        ms=4,
        color=color,
        label=name,
    )
    axes.plot(
        [row["L"] for row in predicted],
        [row["predicted ms"] for row in predicted],
        "--",
        lw=0.8,
        color=color,
    )
