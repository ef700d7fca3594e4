"""The pictures of `python -m experiments decide`."""

import re
from collections.abc import Sequence
from typing import Any

from experiments.bench.plots import (
    BLUE,
    COLORS,
    Figures,
    bars,
    grid,
    legend,
    level,
    sheet,
    speedup_maps,
    styled,
)
from experiments.bench.programs import UNROLLS
from experiments.bench.table import Row

DIRECTIONS = ("gradient", "forward")
WORST = 15  # percent: more is regretted
LOOPS = f"; loops: lax.scan with unroll {', '.join(map(str, (1, *UNROLLS)))}, Python"
MEASURED, HERE = "over best loop", "predicted, here"
MARKERS = "osD^vP*"  # of kinds of chains


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Speedups over L and w, here and on other devices; the regret of "auto"; chaotic chains."""
    found: Figures = {}
    cells = [row for row in rows if row["part"] == "map"]
    for direction in DIRECTIONS:
        mine = [row for row in cells if row["direction"] == direction]
        maps = {
            "measured, over the best loop": MEASURED,
            "predicted, over deeppcr's Sequential()": HERE,
        }
        if any(key in row for row in mine for key in maps.values()):
            title = f"GRU of batch 1, {_named(direction)}: when a parallel program pays off"
            found[direction] = _maps(
                title, {name: (mine, key) for name, key in maps.items()}, LOOPS
            )
    for key in dict.fromkeys(
        key for row in cells for key in row if key.startswith("predicted, ") and key != HERE
    ):
        device = key.removeprefix("predicted, ")
        title = f"GRU of batch 1, predicted for {device}: when a parallel program pays off"
        of = {
            _named(name): ([row for row in cells if row["direction"] == name], key)
            for name in DIRECTIONS
        }
        found[re.sub(r"\W+", "_", device.lower())] = _maps(title, of, " over Sequential()")
    if regret := [row for row in rows if row["part"] == "regret" and "regret %" in row]:
        found["regret"] = _regret(regret)
    if giving_up := [
        row for row in rows if row["part"] == "giving-up" and "times sequential, here" in row
    ]:
        found["giving_up"] = _giving_up(giving_up)
    return found


def _named(direction: str) -> str:
    return "gradient" if direction == "gradient" else "forward pass"


def _maps(title: str, maps: dict[str, tuple[list[Row], str]], over: str) -> Any:
    filled = {
        name: grid(rows, key, "L", "w")
        for name, (rows, key) in maps.items()
        if any(key in row for row in rows)
    }
    _, lengths, widths = next(iter(filled.values()))
    values = {name: values for name, (values, _, _) in filled.items()}
    return speedup_maps(
        title,
        values,
        (lengths, widths),
        ("steps L", "units of the GRU"),
        f"speedup of the best parallel program{over}",
    )


def _regret(rows: Sequence[Row]) -> Any:
    """A point for every chain: how much longer "auto" took than the fastest candidate."""
    directions = [name for name in DIRECTIONS if any(row["direction"] == name for row in rows)]
    title = "Regret of auto: time lost to the fastest candidate (0 is best)"
    drawing, panels = sheet(title, len(directions), height=3.8, sharey=True)
    for axes, direction in zip(panels, directions, strict=True):
        for color, marker, kind in zip(
            COLORS, MARKERS, dict.fromkeys(row["kind"] for row in rows), strict=False
        ):
            mine = [row for row in rows if (row["kind"], row["direction"]) == (kind, direction)]
            x, y = ([row[key] for row in mine] for key in ("lax.scan us", "regret %"))
            axes.plot(
                [each / 1e3 for each in x],
                y,
                marker,
                color=color,
                ms=5,
                label=kind,
                alpha=0.8,
                mew=0,
            )
        level(axes, f"{WORST} %", at=WORST)
        axes.set(xscale="log", title=_named(direction), xlabel="time of jax.lax.scan [ms]")
        axes.set_yscale("symlog", linthresh=10)
        axes.set_yticks([0, 5, 10, 20, 50, 100, 200], ["0", "5", "10", "20", "50", "100", "200"])
        axes.set_yticks([], minor=True)
        axes.set_ylim(bottom=-0.7)
        axes.xaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("regret [% of the fastest]")
    legend(drawing, 6)
    return drawing


def _giving_up(rows: Sequence[Row]) -> Any:
    """What chains cost on which Newton's method gives up."""
    chains = list(dict.fromkeys(row["chain"] for row in rows))
    title = "Chaotic chains: time by method, in that of the sequential program (1 is best)"
    drawing, panels = sheet(title, len(chains), height=2.4)
    for axes, chain in zip(panels, chains, strict=True):
        mine = [row for row in rows if row["chain"] == chain]
        first = chain == chains[0]
        names = [row["method"] if first else "" for row in mine]
        colors = ["0.6" if row["method"] == "sequential" else BLUE for row in mine]
        axes.set_xscale("log")
        bars(axes, names, [row["times sequential, here"] for row in mine], colors)
        axes.set(title=chain, xlabel="time [times the sequential program's]", xlim=(0.5, 3e4))
        axes.xaxis.set_major_formatter("{x:,.0f}")
    return drawing
