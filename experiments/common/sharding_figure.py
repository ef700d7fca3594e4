"""The figure of `python -m experiments sharding`: scaling over the chain, on paper and measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common.plots import figure, halves

Row = dict[str, Any]
LINES = {
    "ms, lax.scan, one device": "lax.scan, one device",
    "ms, batch": "lax.scan, batch over the devices",
    "ms, chain": "Newton, chain over the devices",
}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Times against the number of devices: a column for this machine and each model, strong scaling above weak."""
    columns = {"this machine": [row for row in rows if row["part"] == "measured scaling"]}
    for row in rows:
        if row["part"] == "scaling on paper":
            columns.setdefault(f"on paper, {row['on paper']}", []).append(row)
    with figure(path, columns=len(columns), height=6.4) as places:
        for (name, found), place in zip(columns.items(), places, strict=True):
            for kind, axes in zip(("strong", "weak"), halves(place), strict=True):
                _lines(axes, [row for row in found if row["scaling"] == kind], f"{name}: {kind}")


def _lines(axes: Any, rows: Sequence[Row], title: str) -> None:
    for k, (key, label) in enumerate(LINES.items()):
        there = [row for row in rows if isinstance(row.get(key), float)]
        if there:
            axes.plot([row["devices"] for row in there], [row[key] for row in there], "o-", ms=3, color=f"C{k}", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("devices")
    axes.set_ylabel("training step [ms]")
    lengths = sorted({row["L"] for row in rows})
    axes.set_title(f"{title}, L = {lengths[0]}" + (f" to {lengths[-1]}" if len(lengths) > 1 else ""))
    axes.legend(fontsize=7)
