"""Parallel programs against the sequential one: what was predicted of each, and what came of it.

A `Case` is one problem of one size: sequential programs, of which the fastest is the one to beat, and parallel programs, all of
them functions of the same arguments. `race` compiles each, lets them run in turn, and makes a row of each:

    depth speedup      how many times shallower than the sequential program (`depth.analyze`): that of unlimited processors
    predicted speedup  over the baseline that is predicted to be fastest, on this device (`depth.predict`)
    speedup            realised, over the fastest baseline, and "over lax.scan" beside it

A program that does not compute what the first baseline computes has no speedup, and a note that says so.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import jax
import numpy as np

import depth
from deeppcr import Result
from experiments.common.costs import analyze, further
from experiments.common.timing import Timing, build, clock

Row = dict[str, Any]

REPEATS = 7
SHARE = 0.01  # seconds that a program which takes less is given in each turn: short times scatter more, and are taken more often
MOST_CALLS = 20  # in a turn
PATIENCE = 20.0  # seconds for all calls of one program; one that takes seconds is called less often
MOST_MEMORY = 0.8  # of the device's, for temporaries
LONGEST = 30.0  # seconds; what is predicted to take longer is not run
TOLERANCE = 1e-3
HIDDEN = ("baseline", "min ms", "max ms", "repeats", "trace s", "work", "ended")  # of a printed row


@dataclass(frozen=True)
class Program:
    """A program that takes part.

    Attributes:
        run: what is compiled and timed: a function of the case's arguments, or of what ``prepare`` makes of them.
        prepare: makes the tuple of arguments of ``run`` from the case's, untimed: a forward pass, where ``run`` is the backward
            pass alone.
        solve: a function of the case's arguments that solves the chain as ``run`` does and returns a `deeppcr.Solution`, to tell
            iterations and residual, and how often the loops of ``run`` turn. It is called once for each tuple of arguments; one
            that is jitted, and shared by several cases, is compiled once.
    """

    run: Callable[..., Any]
    prepare: Callable[..., tuple[Any, ...]] | None = None
    solve: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Case:
    """One problem of one size.

    Attributes:
        labels: what its rows begin with: {"L": 1024, "w": 8, "direction": "forward"}.
        arguments: tuples of arguments, equal in shapes and different in values, that the calls go through in turn.
        baselines: the sequential programs by name, plain `jax.lax.scan` first: see `experiments.common.baselines`.
        programs: the parallel ones, by name; a plain function is a `Program` of its own.
        tolerance: how far a result may be from the first baseline's, relative to the largest entry.
    """

    labels: Mapping[str, Any]
    arguments: Sequence[tuple[Any, ...]]
    baselines: Mapping[str, Program | Callable[..., Any]]
    programs: Mapping[str, Program | Callable[..., Any]]
    tolerance: float = TOLERANCE


def race(
    case: Case, device: depth.Device, repeats: int = REPEATS, longest: float = LONGEST
) -> Iterator[Row]:
    """Predict, compile and time all programs of a case.

    Args:
        case: the programs.
        device: the model that times are predicted with: see `experiments.common.options.model`.
        repeats: how often each is timed, at least; less often only where that would take more than 20 seconds.
        longest: seconds; a program that is predicted to take longer is not run.

    Yields:
        A row for each program, baselines first: the case's labels, "program", "baseline" (whether it is one), "ms" (median),
        "min ms", "max ms", "repeats", "trace s", "compile s", "temp MB", "depth", "work", "predicted ms", "log2" (of predicted
        over measured time), "error" (the largest difference from the first baseline, relative to the largest entry); "speedup",
        "over lax.scan", "depth speedup", "predicted speedup"; with ``solve`` "iterations", "residual" and "ended"; and "note"
        where something kept it from running, or it is wrong. What is not known is not in the row.
    """
    runners = {
        name: _Runner(program, case)
        for name, program in {**case.baselines, **case.programs}.items()
    }
    expected: Any = None
    for runner in runners.values():
        with _noting(runner):
            if runner.predict(device, longest) and runner.compile(device):
                expected = runner.check(expected)
    for _ in range(repeats):
        for runner in runners.values():
            with _noting(runner):
                runner.measure()  # never the first call: that one was checked
    yield from _rows(case, runners)


def distance(result: Any, expected: Any) -> float:
    """The largest difference of two pytrees, relative to the largest entry of the array that it is in; infinite with NaN."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        difference = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max(initial=0.0)
        relative = difference / (np.abs(b).max(initial=0.0) or 1.0)
        worst = max(worst, math.inf if math.isnan(relative) else float(relative))
    return worst


class _Runner:
    """A program in the race, and what is known of it so far."""

    def __init__(self, program: Program | Callable[..., Any], case: Case):
        self.program = program if isinstance(program, Program) else Program(program)
        self.case = case
        self.note = ""
        self.row: Row = {}
        self.cost: depth.Cost | None = None
        self.predicted: float | None = None
        self.call: Callable[[], Any] | None = None
        self.seconds: list[float] = []

    def predict(self, device: depth.Device, longest: float) -> bool:
        """Read the program, and solve the chain where loops do not say how often they turn; whether it is worth running."""
        prepare, given = self.program.prepare, self.case.arguments
        self.arguments = [prepare(*arguments) for arguments in given] if prepare else list(given)
        cost = self._read(None)
        least = cost if cost.exact else self._read(1)
        if self.program.solve and self._in_time(least, device, longest):
            solutions = [self.program.solve(*arguments) for arguments in given]
            self.row |= _told(solutions)
            cost = cost if cost.exact else self._read(*_turns(solutions))
        if cost.exact:
            self.cost, self.predicted = cost, depth.predict(cost, device)
            self.row |= {
                "depth": cost.depth,
                "work": cost.work,
                "predicted ms": 1e3 * self.predicted,
            }
        return self._in_time(cost if cost.exact else least, device, longest)

    def _read(self, turns: int | None, rest: int | None = None) -> depth.Cost:
        return analyze(self.program.run, *self.arguments[0], turns=turns, rest=rest)

    def _in_time(self, cost: depth.Cost, device: depth.Device, longest: float) -> bool:
        seconds = depth.predict(cost, device)
        if seconds > longest:
            self.note = f"not run: predicted to take {seconds:.3g} s"
        return seconds <= longest

    def compile(self, device: depth.Device) -> bool:
        """Compile the program; whether its temporaries fit."""
        built = build(self.program.run, *self.arguments[0])
        self.row |= {"trace s": built.lower, "compile s": built.compile}
        if built.temporary_bytes is not None:
            self.row["temp MB"] = built.temporary_bytes / 1e6
            if built.temporary_bytes > MOST_MEMORY * device.memory > 0:
                self.note = f"not run: needs {built.temporary_bytes / 1e9:.1f} GB"
                return False
        turn = cycle(self.arguments)
        self.call = lambda: built.call(*next(turn))
        return True

    def check(self, expected: Any) -> Any:
        """Call it for the first time, and compare what it returns with what is expected, if that is known; which is returned."""
        assert self.call is not None
        result = jax.device_get(self.call())
        expected = result if expected is None else expected
        self.row["error"] = error = distance(result, expected)
        if not error <= self.case.tolerance:
            self.note = f"wrong: differs from {next(iter(self.case.baselines))} by {error:.1e}"
        return expected

    def measure(self) -> None:
        """A turn of calls, each timed."""
        if self.call is None:
            return
        last = self.seconds[-1] if self.seconds else math.inf
        if not self.seconds or sum(self.seconds) + last <= PATIENCE:
            self.seconds += [
                clock(self.call) for _ in range(max(1, min(MOST_CALLS, int(SHARE / last))))
            ]

    @property
    def timing(self) -> Timing | None:
        """Its times, if it has any."""
        return Timing(tuple(self.seconds)) if self.seconds else None


@contextmanager
def _noting(runner: _Runner) -> Iterator[None]:
    """Whatever XLA says that it cannot do, such as find the memory, is a note, and the race goes on."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        runner.note = f"failed: {str(error).strip().partition(chr(10))[0][:200]}"
        runner.call = None


def _told(solutions: Sequence[Any]) -> Row:
    """What solutions tell of how they were found."""
    results = [Result(int(solution.result)) for solution in solutions]
    return {
        "iterations": round(
            sum(int(solution.stats.iterations) for solution in solutions) / len(solutions)
        ),
        "residual": max(float(solution.stats.residual) for solution in solutions),
        "ended": max(results).name.lower().replace("_", " "),
    }


def _turns(solutions: Sequence[Any]) -> tuple[int, int]:
    """How often loops turn that do not say so: once a further iteration, and those that finish step by step."""
    rest = [_length(solution) - int(solution.stats.prefix) for solution in solutions]
    return further(_told(solutions)["iterations"]), round(sum(rest) / len(rest))


def _length(solution: Any) -> int:
    return len(jax.tree.leaves(solution.trajectory)[0])


def _rows(case: Case, runners: Mapping[str, _Runner]) -> Iterator[Row]:
    baselines = [runners[name] for name in case.baselines]
    right = [runner.timing.median for runner in baselines if runner.timing and not runner.note]
    foreseen = [runner.predicted for runner in baselines if runner.predicted is not None]
    plain = baselines[0]
    for name, runner in runners.items():
        row = {**case.labels, "program": name, "baseline": name in case.baselines, **runner.row}
        if timing := runner.timing:
            row |= {
                "ms": 1e3 * timing.median,
                "min ms": 1e3 * timing.minimum,
                "max ms": 1e3 * timing.maximum,
            }
            row["repeats"] = timing.count
            if runner.predicted is not None:
                row["log2"] = math.log2(runner.predicted / timing.median)
            if not runner.note and right:
                row["speedup"] = min(right) / timing.median
            if not runner.note and plain.timing:
                row[f"over {next(iter(case.baselines))}"] = plain.timing.median / timing.median
        if runner.predicted is not None and foreseen:
            row["predicted speedup"] = min(foreseen) / runner.predicted
        if runner.cost and plain.cost:
            row["depth speedup"] = plain.cost.depth / max(runner.cost.depth, 1)
        if runner.note:
            row["note"] = runner.note
        yield row


def shown(row: Row) -> Row:
    """The cells of a row that fit a terminal."""
    return {key: value for key, value in row.items() if key not in HIDDEN}
