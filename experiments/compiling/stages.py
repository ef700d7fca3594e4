"""Where the time to compile goes: tracing, lowering to StableHLO, XLA's passes, LLVM."""

import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax

LLVM = "TaskDispatcher"  # what XLA's profile calls the tasks of LLVM


class Stages(NamedTuple):
    """The CPU seconds of all threads to compile a program.

    Attributes:
        trace: of jax, to a jaxpr.
        lower: of jax, to StableHLO.
        compile: of XLA, passes and LLVM.
        call: the compiled program.
    """

    trace: float
    lower: float
    compile: float
    call: Any

    @classmethod
    def of(cls, f: Callable[..., Any], *args: Any) -> "Stages":
        """Of ``f``, compiled for ``args`` from scratch."""
        jax.clear_caches()
        times = [time.process_time()]
        traced = jax.jit(f).trace(*args)
        times.append(time.process_time())
        lowered = traced.lower()
        times.append(time.process_time())
        call = lowered.compile()
        times.append(time.process_time())
        trace, lower, last = (after - before for before, after in pairwise(times))
        return cls(trace, lower, last, call)

    @property
    def total(self) -> float:
        """Of all stages."""
        return self.trace + self.lower + self.compile

    @property
    def instructions(self) -> int:
        """Of the optimised program, those inside fusions included."""
        text: str = self.call.as_text()
        return sum(" = " in line for line in text.splitlines())


def seconds_of_llvm(f: Callable[..., Any], *args: Any) -> float | None:
    """The wall-clock seconds of the tasks of LLVM in a compilation; None if a profile has none."""
    jax.clear_caches()
    lowered = jax.jit(f).lower(*args)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            lowered.compile()
        files = list(Path(folder).rglob("*.trace.json.gz"))
        events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"] if files else []
    found = [own for name, own in _own_times(events) if name.startswith(LLVM)]
    return sum(found) / 1e6 if found else None


def _own_times(events: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """The names of events, and the microseconds of each that are not those of one inside it."""
    timed = [event for event in events if event.get("ph") == "X"]
    timed.sort(key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"]))
    around: list[dict[str, Any]] = []
    own = {id(event): event["dur"] for event in timed}
    for event in timed:
        while around and not _contains(around[-1], event):
            around.pop()
        if around:
            own[id(around[-1])] -= event["dur"]
        around.append(event)
    return ((event["name"], own[id(event)]) for event in timed)


def _contains(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    is_same = (outer["pid"], outer["tid"]) == (inner["pid"], inner["tid"])
    return is_same and inner["ts"] < outer["ts"] + outer["dur"]
