"""What rows of the bench come to.

The fastest programs of each case, sequential and parallel, and how good predictions were.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from experiments.bench.table import Row


def is_benchmark(row: Row) -> bool:
    """Whether a row is one of `experiments.bench.engine.bench`."""
    return "program" in row and "baseline" in row


def labels(row: Row) -> Row:
    """What of a row says which case it is: all that comes before the program."""
    keys = list(row)
    return {key: row[key] for key in keys[: keys.index("program")]}


def cases(rows: Iterable[Row]) -> list[tuple[Row, list[Row]]]:
    """The rows of the bench, by case."""
    found: dict[tuple[tuple[str, Any], ...], list[Row]] = {}
    for row in filter(is_benchmark, rows):
        found.setdefault(tuple(labels(row).items()), []).append(row)
    return [(dict(case), group) for case, group in found.items()]


def best(rows: Iterable[Row], without: Sequence[str] = ("auto",)) -> Iterator[Row]:
    """For every case its fastest baseline and the fastest other program that computes the same.

    Args:
        rows: of the bench; others are left out.
        without: programs that may run sequentially, and so do not count as parallel ones. How fast
            "auto" is stands beside.
    """
    for case, group in cases(rows):
        right = [row for row in group if "speedup" in row and row.get("ended") != "not converged"]
        right.sort(key=lambda row: float(row["ms"]))
        sequential = next((row for row in right if row["baseline"]), None)
        others = [row for row in right if not row["baseline"]]
        parallel = next((row for row in others if row["program"] not in without), None)
        auto = next((row for row in others if row["program"] == "auto"), None)
        if sequential and parallel:
            found = {
                "sequential": sequential["program"],
                "sequential ms": sequential["ms"],
                "parallel": parallel["program"],
                "parallel ms": parallel["ms"],
            }
            for key in ("depth speedup", "predicted speedup", "speedup", "over lax.scan"):
                found[key] = parallel.get(key)
            found["auto, speedup"] = auto and auto["speedup"]
            yield case | {key: value for key, value in found.items() if value is not None}


def errors(rows: Iterable[Row]) -> Row | None:
    """How far predicted times were from measured ones, |log2(predicted / measured)|.

    None where nothing was predicted.
    """
    logarithms = [row["log2"] for row in rows if isinstance(row.get("log2"), int | float)]
    found = sorted(abs(float(logarithm)) for logarithm in logarithms)
    if not found:
        return None
    percentile = found[int(0.9 * (len(found) - 1) + 0.5)]
    median = statistics.median(found)
    return {"programs": len(found), "median": median, "90th percentile": percentile}
