"""A line for each case: the default beside `jax.lax.scan`, an LSTM by hand, torch, checkpoints."""

from collections.abc import Iterator, Sequence
from math import inf
from statistics import geometric_mean

from experiments.bench.engine import AUTO
from experiments.bench.programs import SCAN
from experiments.bench.summary import cases
from experiments.bench.table import Row
from experiments.recurrent.beside_torch import ALONE
from experiments.recurrent.beside_torch import NAME as TORCH
from experiments.recurrent.networks import BY_HAND
from experiments.recurrent.wide import CHECKPOINTS

DEFAULT = "default"
BESIDE = (BY_HAND, TORCH, CHECKPOINTS)  # of torch the faster one
LABELS = {"kind": "kind", "w": "w", "L": "T", "batch": "batch"}
SPEEDUPS = ("over lax.scan", "over the best loop", "predicted")
COLUMNS = {
    "kind": "the program",
    "w": "units, or the size of the state",
    "T": "steps",
    "batch": "sequences at once",
    **{f"{name}, ms": "time of a call, in milliseconds" for name in (SCAN, DEFAULT, *BESIDE)},
    "over lax.scan": "speedup of the default over plain jax.lax.scan, measured",
    "over the best loop": "the same over the fastest of unroll 1, 4 and 16",
    "predicted": "the same, from predicted times",
    "chosen": "what the plan has chosen",
    **{f"{name}, MB": "memory for temporaries, in MB" for name in (SCAN, DEFAULT, CHECKPOINTS)},
    **{f"{name}, compile s": "seconds to trace and compile" for name in (SCAN, DEFAULT)},
}


def compared(rows: Sequence[Row], part: str) -> list[Row]:
    """The lines of a part; below them means and least speedups."""
    lines = [
        _line(labels, {row["program"]: row for row in group})
        for labels, group in cases(rows)
        if labels["part"] == part
    ]
    if not lines:
        return []
    found = {key: [line[key] for line in lines if key in line] for key in SPEEDUPS}
    every = {key: values for key, values in found.items() if values}
    means = {key: geometric_mean(values) for key, values in every.items()}
    worst = {key: min(values) for key, values in every.items()}
    return [*lines, {"kind": "geometric mean", **means}, {"kind": "worst", **worst}]


def _line(labels: Row, programs: dict[str, Row]) -> Row:
    """The cells of a case, in the order of `COLUMNS`; empty where something was not measured."""
    line = {title: labels[key] for key, title in LABELS.items()}
    both = (programs.pop(name, {}) for name in (TORCH, ALONE))
    torch = min(both, key=lambda row: row.get("ms", inf))
    of = {DEFAULT: programs.pop(AUTO, {}), TORCH: torch, **programs}
    for name, row in of.items():
        cells = {"ms": row.get("ms")}
        if labels["direction"] == "gradient":  # a forward pass keeps next to nothing
            cells["MB"] = row.get("temp MB")
        if "compile s" in row:
            cells["compile s"] = row["trace s"] + row["compile s"]
        line |= {f"{name}, {key}": cell for key, cell in cells.items()}
    ours = of[DEFAULT]
    line |= {"over lax.scan": ours.get(f"over {SCAN}"), "over the best loop": ours.get("speedup")}
    line |= {"predicted": ours.get("predicted speedup"), "chosen": ours.get("chosen")}
    return {key: line[key] for key in COLUMNS if line.get(key) is not None}


def said(lines: Sequence[Row]) -> Iterator[str]:
    """How the default compares with each of the others, as a share of its time or memory."""
    for key in [*(f"{name}, ms" for name in (SCAN, *BESIDE)), f"{SCAN}, MB", f"{SCAN}, compile s"]:
        ours = f"{DEFAULT}, {key.rpartition(', ')[2]}"
        shares = [line[ours] / line[key] for line in lines if line.get(key) and line.get(ours)]
        if shares:
            mean, worst = geometric_mean(shares), max(shares)
            over = f"geometric mean of {len(shares)}"
            yield f"default / {key}: {mean:.2f} ({over}), worst {worst:.2f}"
