"""Programs that are judged by how long they take to compile: each is built anew several times, then all of them run in turn."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax

import depth
from experiments.common.baselines import SCAN
from experiments.common.costs import cost
from experiments.common.progress import progress
from experiments.common.timing import Build, Timing, build, interleave
from experiments.common.versus import TOLERANCE, distance

Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A way to write the program.

    Attributes:
        arguments: makes what it is a function of.
        program: makes it anew, so that nothing of it has been traced before.
        comparable: brings what it returns into one form, that of all ways.
        baseline: whether it is a sequential program to beat.
        iterations: of Newton's method, that are expected with these arguments, if its program has such a loop.
        told: what else its row says, from what it returns.
    """

    arguments: Callable[[], tuple[Any, ...]]
    program: Callable[[], Callable[..., Any]]
    comparable: Callable[[Any], Any] = lambda result: result
    baseline: bool = False
    iterations: Callable[..., int] = lambda *_: 0
    told: Callable[[Any], Row] = lambda result: {}


def compare(
    ways: Mapping[str, Way], plain: str, device: depth.Device, builds: int, repeats: int
) -> Iterator[Row]:
    """Compile the ways, compare what they return, and time them.

    Args:
        ways: by name.
        plain: the way by `jax.lax.scan`, which the others are compared with.
        device: the model that times are predicted with.
        builds: how often each is traced and compiled.
        repeats: how often each is timed.

    Yields:
        A row for each way: "way", "trace", "compile" and "total" (seconds, the least of all builds), "temp MB", "depth", "work",
        "predicted ms", "ms" (median), "min ms", "max ms", "repeats", "log2" (of predicted over measured time), "error" (the
        largest difference from what the plain way returns, relative to the largest entry); against the plain way
        "depth speedup" and "over lax.scan"; against the fastest baseline "predicted speedup" and "speedup"; and "note" where it
        is wrong. What is not known is not in the row.
    """
    arguments = {name: jax.block_until_ready(way.arguments()) for name, way in ways.items()}
    costs = {
        name: cost(way.program(), arguments[name], partial(way.iterations, *arguments[name]))
        for name, way in ways.items()
    }
    predicted = {name: depth.predict(known, device) for name, known in costs.items() if known}
    built = _built(ways, arguments, builds)
    calls = {name: (lambda name=name: built[name][-1].call(*arguments[name])) for name in ways}
    returned = {name: jax.device_get(call()) for name, call in calls.items()}
    told = {name: way.told(returned[name]) for name, way in ways.items()}
    expected = ways[plain].comparable(returned[plain])
    errors = {
        name: distance(way.comparable(returned[name]), expected) for name, way in ways.items()
    }
    del returned, expected
    timings = interleave(calls, repeats)
    loops = [name for name, way in ways.items() if way.baseline and errors[name] <= TOLERANCE]
    for name in ways:
        timing = timings[name]
        row = {
            "way": name,
            **_compiled(built[name]),
            **_times(timing),
            "error": errors[name],
            **told[name],
        }
        known, base = costs[name], costs[plain]
        if known and base:
            row |= {
                "depth": known.depth,
                "work": known.work,
                "depth speedup": base.depth / max(known.depth, 1),
            }
        if name in predicted:
            row |= {
                "predicted ms": 1e3 * predicted[name],
                "log2": math.log2(predicted[name] / timing.median),
            }
            row["predicted speedup"] = (
                min(predicted[loop] for loop in loops if loop in predicted) / predicted[name]
            )
        if errors[name] <= TOLERANCE:
            row["speedup"] = min(timings[loop].median for loop in loops) / timing.median
            row[f"over {SCAN}"] = timings[plain].median / timing.median
        else:
            row["note"] = f"wrong: differs from {plain} by {errors[name]:.1e}"
        yield row


def _built(
    ways: Mapping[str, Way], arguments: Mapping[str, tuple[Any, ...]], builds: int
) -> dict[str, list[Build]]:
    """Builds of every way, in turn: a machine that slows down slows all of them."""
    found: dict[str, list[Build]] = {name: [] for name in ways}
    for _, name in progress(product(range(builds), ways), "compiling", builds * len(ways)):
        jax.clear_caches()
        found[name].append(build(ways[name].program(), *arguments[name]))
    return found


def _compiled(builds: list[Build]) -> Row:
    trace, compile_ = min(each.lower for each in builds), min(each.compile for each in builds)
    row = {"trace": trace, "compile": compile_, "total": trace + compile_}
    temporary = builds[-1].temporary_bytes
    return row if temporary is None else row | {"temp MB": temporary / 1e6}


def _times(timing: Timing) -> Row:
    times = {"ms": timing.median, "min ms": timing.minimum, "max ms": timing.maximum}
    return {name: 1e3 * seconds for name, seconds in times.items()} | {"repeats": timing.count}
