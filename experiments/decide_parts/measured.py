"""Programs of the same arguments, compiled, checked against the first of them, and timed in turn."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from experiments.common.timing import Build, Timing, build, clock
from experiments.common.versus import TOLERANCE, distance

Row = dict[str, Any]

MOST_CALLS = 100  # in a turn
SLOW = 5  # times the fastest: what takes longer is called twice, and no more


@dataclass(frozen=True)
class Measured:
    """What became of programs.

    Attributes:
        timings: of those that compute what the first one computes.
        builds: of those that were compiled.
        errors: how far their results are from the first one's, relative to the largest entry.
        notes: on those that failed, or are wrong.
    """

    timings: dict[str, Timing]
    builds: dict[str, Build]
    errors: dict[str, float]
    notes: dict[str, str]

    @property
    def seconds(self) -> dict[str, float]:
        """The least time of each."""
        return {name: timing.minimum for name, timing in self.timings.items()}

    def best(self, names: Iterable[str]) -> str:
        """The fastest of these."""
        return min((name for name in names if name in self.timings), key=self.seconds.__getitem__)

    def told(self, name: str, predicted: float) -> Row:
        """What is said of one program, which was predicted to take so many seconds: that, its times, memory and error."""
        built, timing = self.builds[name], self.timings[name]
        row: Row = {
            "us": 1e6 * timing.minimum,
            "median us": 1e6 * timing.median,
            "max us": 1e6 * timing.maximum,
            "repeats": timing.count,
            "trace s": built.lower,
            "compile s": built.compile,
            "predicted us": 1e6 * predicted,
            "log2": math.log2(predicted / timing.minimum),
            "error": self.errors[name],
        }
        return (
            row if built.temporary_bytes is None else row | {"temp MB": built.temporary_bytes / 1e6}
        )

    @property
    def note(self) -> Row:
        """What went wrong, if anything did."""
        return (
            {"note": "; ".join(f"{name} {note}" for name, note in self.notes.items())}
            if self.notes
            else {}
        )


@dataclass(frozen=True)
class Effort:
    """How long programs are timed.

    Attributes:
        repeats: turns; but what is five times as slow as the fastest is called only twice.
        seconds: for all turns of one program: short ones are called more often in each.
    """

    repeats: int
    seconds: float = 0.3


def measure(
    programs: Mapping[str, Callable[..., Any]], arguments: tuple[Any, ...], effort: Effort
) -> Measured:
    """Compile programs, see that they compute what the first one computes, and let those that do run in turn.

    Args:
        programs: functions of the arguments, by name.
        arguments: of all of them.
        effort: how long they are timed.

    Returns:
        What became of each.
    """
    found = Measured({}, {}, {}, {})
    calls: dict[str, Callable[[], Any]] = {}
    expected: Any = None
    for name, program in programs.items():
        try:
            found.builds[name] = built = build(program, *arguments)
            result = jax.device_get(built.call(*arguments))
        except jax.errors.JaxRuntimeError as error:  # XLA finds no memory, for example
            found.notes[name] = f"failed: {str(error).strip().partition(chr(10))[0][:200]}"
            continue
        expected = result if expected is None else expected
        found.errors[name] = wrong = distance(result, expected)
        if wrong <= TOLERANCE:
            calls[name] = partial(built.call, *arguments)
        else:
            found.notes[name] = f"is wrong: it differs from {next(iter(programs))} by {wrong:.1e}"
    found.timings.update(_timed(calls, effort))
    return found


def _timed(calls: Mapping[str, Callable[[], Any]], effort: Effort) -> dict[str, Timing]:
    seconds = {
        name: [clock(call) for _ in range(min(2, effort.repeats))] for name, call in calls.items()
    }
    for _ in range(effort.repeats - 2):
        fastest = min(map(min, seconds.values()))
        for name, call in calls.items():
            least = min(seconds[name])
            if least < SLOW * fastest:
                turns = min(MOST_CALLS, int(effort.seconds / effort.repeats / least))
                seconds[name] += [clock(call) for _ in range(max(1, turns))]
    return {name: Timing(tuple(times)) for name, times in seconds.items()}
