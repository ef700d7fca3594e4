"""Summaries of rows: the fastest programs of each case, and how good predictions were."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from experiments.bench.table import Row

CAPTURED = ", captured"  # what the names of programs in CUDA graphs end with, in stored results
SPEEDUPS = ("depth speedup", "predicted speedup", "speedup", "over lax.scan")


def is_benchmark(row: Row) -> bool:
    """Whether a row is one of `experiments.bench.engine.bench`."""
    return "program" in row and "baseline" in row


def labels(row: Row) -> Row:
    """The cells that say which case a row belongs to: all before the program."""
    keys = list(row)
    return {key: row[key] for key in keys[: keys.index("program")]}


def cases(rows: Iterable[Row]) -> list[tuple[Row, list[Row]]]:
    """Rows of the engine, by case."""
    found: dict[tuple[tuple[str, Any], ...], list[Row]] = {}
    for row in filter(is_benchmark, rows):
        found.setdefault(tuple(labels(row).items()), []).append(row)
    return [(dict(case), group) for case, group in found.items()]


def best(rows: Iterable[Row], without: Sequence[str] = ("auto",)) -> Iterator[Row]:
    """For every case its fastest baseline and the fastest other program that computes the same.

    Args:
        rows: of the engine; others are left out.
        without: programs that do not count as parallel, since they may run sequentially; captured
            ones are the same programs. "auto" counts where `is_parallel`, and its speedup has a
            column of its own.
    """
    for case, group in cases(rows):
        right = [row for row in group if "speedup" in row and row.get("ended") != "not converged"]
        right.sort(key=lambda row: float(row["ms"]))
        sequential = next((row for row in right if row["baseline"]), None)
        others = [row for row in right if not row["baseline"]]
        parallel = next((row for row in others if is_parallel(row, without)), None)
        auto = next((row for row in others if row["program"] == "auto"), None)
        if sequential and parallel:
            found = {
                "sequential": sequential["program"],
                "sequential ms": sequential["ms"],
                "parallel": parallel["program"],
                "parallel ms": parallel["ms"],
            }
            for key in SPEEDUPS:
                found[key] = parallel.get(key)
            found["auto, speedup"] = auto and auto["speedup"]
            yield case | {key: value for key, value in found.items() if value is not None}


def is_parallel(row: Row, without: Sequence[str] = ("auto",)) -> bool:
    """Whether the program of a row is parallel: none of ``without``, or an "auto" that is.

    A program that runs step by step, and takes its gradient so, has more than half of the depth of
    the loop that it is compared with.
    """
    program = row["program"].removesuffix(CAPTURED)
    return program not in without or (program == "auto" and row.get("depth speedup", 1.0) > 2)


def errors(rows: Iterable[Row]) -> Row | None:
    """How far predictions are from measurements, as |log2(predicted / measured)|.

    None if nothing was predicted.
    """
    logarithms = [row["log2"] for row in rows if isinstance(row.get("log2"), int | float)]
    found = sorted(abs(float(logarithm)) for logarithm in logarithms)
    if not found:
        return None
    median = statistics.median(found)
    return {"programs": len(found), "median": median, "90th percentile": percentile(found, 0.9)}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    return sorted(values)[int(share * (len(values) - 1) + 0.5)]
