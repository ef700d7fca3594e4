"""The engine: programs that compute the same in, a row for each out.

A `Case` is one problem of one size: sequential programs, of which the fastest is the baseline, and
variants. `bench` predicts the time of each, compiles it, compares its result with that of the first
sequential program, and times all of them, interleaved. There are three speedups:

    depth speedup      how many times shallower than the sequential program (`depth.analyze`): the
                       speedup on unlimited processors
    predicted speedup  over the sequential program that is predicted to be fastest here
                       (`depth.predict`)
    speedup            measured, over the fastest sequential program ("over lax.scan": the first)

A variant with another result has no speedup, and a note instead.

XLA compiles outside of Python's lock, so the programs of a case are compiled in threads, and timed
when all of them are there. What takes part in a comparison of compile times is compiled alone: the
first loop and "auto", or all programs where ``builds`` asks for it.
"""

import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import jax
import numpy as np

import depth
from deeppcr import Result
from depth.cost import call_seconds
from experiments.bench.costs import analyze
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Build, Effort, Timing, build, interleave

LONGEST = 30.0  # seconds; what is predicted to take longer is not run
MOST_MEMORY = 0.8  # of the device's, for temporaries
TOLERANCE = 1e-3
EFFORT = Effort()
AUTO = "auto"  # the program that is what deeppcr does by default
TINY = np.finfo(np.float32).tiny
TIMED = 0.5  # share of the time of a case in which calls are timed


@dataclass(frozen=True)
class Variant:
    """A program that computes the result of a case.

    Attributes:
        run: what is compiled and timed: a function of the arguments, or of what ``prepare`` returns
            for them.
        arguments: tuples of arguments of its own, instead of those of the case.
        prepare: maps the arguments to those of ``run``, untimed: a forward pass, to time the
            backward pass alone.
        solve: a function of the arguments that solves the chain as ``run`` does and returns a
            `deeppcr.Solution`, for iterations, residual and trips of loops. Called once for each
            tuple of arguments.
        comparable: maps the result to a form that all variants share.
        statistics: further cells of its row, from the result.
        is_jax: whether it is a program of jax; others, of torch, are called as they are.
    """

    run: Callable[..., Any]
    arguments: Sequence[tuple[Any, ...]] | None = None
    prepare: Callable[..., tuple[Any, ...]] | None = None
    solve: Callable[..., Any] | None = None
    comparable: Callable[[Any], Any] = lambda result: result
    statistics: Callable[[Any], Row] | None = None
    is_jax: bool = True


@dataclass(frozen=True)
class Case:
    """One problem of one size.

    Attributes:
        labels: the first cells of its rows: {"L": 1024, "w": 8, "direction": "forward"}.
        arguments: tuples of arguments, of equal shapes and different values; calls cycle through
            them.
        baselines: sequential programs by name, plain `jax.lax.scan` first: see
            `experiments.bench.programs.baselines`.
        variants: the other programs, by name; a function is a `Variant` by itself.
        tolerance: largest difference from the first baseline's result, relative to its largest
            entry.
        in_float64: whether results are also compared with that of the first baseline in float64.
    """

    labels: Mapping[str, Any]
    arguments: Sequence[tuple[Any, ...]]
    baselines: Mapping[str, Variant | Callable[..., Any]]
    variants: Mapping[str, Variant | Callable[..., Any]]
    tolerance: float = TOLERANCE
    in_float64: bool = False

    @property
    def plain(self) -> str:
        """The name of the first baseline, with whose result all others are compared."""
        return next(iter(self.baselines))


@dataclass
class Outcome:
    """The outcome of a variant.

    Attributes:
        variant: of the case.
        arguments: tuples of arguments of ``run``.
        row: its cells so far.
        note: why it did not run, or that its result is wrong; else empty.
        cost: of one call, where the trips of all loops are known.
        predicted: seconds of one call; None where unknown.
        build: the compiled program.
        error: the largest difference from the first baseline, relative to the largest entry.
        timing: of the calls after the first.
    """

    variant: Variant
    arguments: list[tuple[Any, ...]]
    row: Row = field(default_factory=dict)
    note: str = ""
    cost: depth.Cost | None = None
    predicted: float | None = None
    build: Build | None = None
    error: float = math.inf
    timing: Timing | None = None

    @property
    def is_right(self) -> bool:
        """Whether it was timed and has the right result."""
        return self.timing is not None and not self.note

    def times(self) -> Row:
        """Median, least, greatest and processor time of a call in milliseconds; number of calls."""
        if self.timing is None:
            return {}
        seconds = self.timing.seconds
        times = {"ms": self.timing.median, "min ms": min(seconds), "max ms": max(seconds)}
        if self.timing.processor:
            times["CPU ms"] = statistics.median(self.timing.processor)
        return {name: 1e3 * t for name, t in times.items()} | {"repeats": len(seconds)}


def bench(
    case: Case,
    device: depth.Device,
    effort: Effort = EFFORT,
    longest: float = LONGEST,
    builds: int = 0,
) -> Iterator[Row]:
    """Predict, compile, check and time all programs of a case.

    Args:
        case: the programs.
        device: the model that predicts times.
        effort: how long they are timed.
        longest: seconds; a program that is predicted to take longer is not run.
        builds: number of times each is traced and compiled from scratch, one after another; the
            least times count. 0: once, with jax's caches, all but the first loop and "auto" at the
            same time, and then only those two have times.

    Yields:
        A row for each program, baselines first: the case's labels, "program", "baseline" (whether
        it is one), "ms" (median), "min ms", "max ms", "CPU ms" (of all cores), "repeats", "trace
        s", "compile s", "temp MB", "depth", "work", "predicted ms", "log2" (of predicted over
        measured time), "error" (the largest difference from the first baseline, relative to the
        largest entry), "error, float64" (from that in float64, if asked for); "speedup", "over
        lax.scan", "depth speedup", "predicted speedup"; with
        ``solve`` "iterations", "residual" and "ended"; and "note" if it did not run or is wrong.
        Unknown cells are missing.
    """
    outcomes = measure(case, effort, device, longest, builds)
    first, loops = outcomes[case.plain], [outcomes[name] for name in case.baselines]
    right = [loop.timing.median for loop in loops if loop.is_right and loop.timing]
    foreseen = [loop.predicted for loop in loops if loop.predicted is not None]
    for name, one in outcomes.items():
        row = {**case.labels, "program": name, "baseline": name in case.baselines, **one.row}
        if one.timing:
            row |= one.times()
            if one.predicted is not None:
                row["log2"] = math.log2(one.predicted / one.timing.median)
            if one.is_right and right:
                row["speedup"] = min(right) / one.timing.median
            if one.is_right and first.timing:
                plain = case.plain.partition(",")[0]
                row[f"over {plain}"] = first.timing.median / one.timing.median
        if one.predicted is not None and foreseen:
            row["predicted speedup"] = min(foreseen) / one.predicted
        if one.cost and first.cost:
            row["depth speedup"] = first.cost.depth / max(one.cost.depth, 1)
        yield row | ({"note": one.note} if one.note else {})


def measure(
    case: Case,
    effort: Effort = EFFORT,
    device: depth.Device | None = None,
    longest: float = LONGEST,
    builds: int = 0,
) -> dict[str, Outcome]:
    """The outcomes of all programs of a case, as in `bench`.

    Without a device nothing is predicted.
    """
    programs = {**case.baselines, **case.variants}
    outcomes: dict[str, Outcome] = {}
    for name, given in programs.items():
        variant = given if isinstance(given, Variant) else Variant(given)
        tuples = case.arguments if variant.arguments is None else variant.arguments
        outcomes[name] = Outcome(variant, list(tuples))
    alone = [name for name in outcomes if builds or name in (case.plain, AUTO)]

    def make(name: str) -> Any:
        one = outcomes[name]
        with _noting(one):
            tuples = one.arguments
            if one.variant.prepare:
                one.arguments = [one.variant.prepare(*arguments) for arguments in tuples]
            if device and one.variant.is_jax:
                _predict(one, tuples, device, longest)
            if name not in alone and not one.note:
                _compile(one, device)

    exact: Any = None
    with _threads() as pool:
        first = outcomes[case.plain]
        if case.in_float64:
            exact = pool.submit(_in_float64, first.variant, first.arguments[0])
        for done, (name, _) in enumerate(zip(outcomes, pool.map(make, outcomes), strict=True)):
            PROGRESS.say(f"compiling, {name} is there", (1 - TIMED) * done / len(outcomes))
    for _ in range(max(builds, 1)):  # a machine that slows down slows all of them
        for name in alone:
            PROGRESS.say(f"compiling {name}")
            if not (one := outcomes[name]).note:
                with _noting(one):
                    _compile(one, device, anew=bool(builds), is_timed=True)
    calls: dict[str, Callable[[], Any]] = {}
    expected: Any = None
    for name, one in outcomes.items():
        if one.build and not one.note:
            PROGRESS.say(f"checking {name}", 1 - TIMED)
            with _noting(one):
                calls[name] = call = _cycled(one)
                expected = _check(one, call(), expected, exact and exact.result(), case)
    calls = {name: call for name, call in calls.items() if "error" in outcomes[name].row}
    patience = min(effort.patience, TIMED * PROGRESS.share() / max(len(calls), 1))
    effort = dataclasses.replace(effort, patience=patience)
    timings = interleave(calls, effort, lambda name, error: _fail(outcomes[name], error))
    for name, timing in timings.items():
        outcomes[name].timing = timing
    return outcomes


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as cores; what has not begun after an error or Ctrl-C does not begin."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _in_float64(variant: Variant, arguments: tuple[Any, ...]) -> Any:
    """The comparable result of a program in float64; what float32 cannot hold is zero."""

    def double(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x

    with jax.enable_x64(True):
        doubles = jax.tree.map(double, arguments)
        doubles = variant.prepare(*doubles) if variant.prepare else doubles
        found = jax.device_get(variant.comparable(jax.jit(variant.run)(*doubles)))
    return jax.tree.map(lambda x: np.where(np.abs(x) < TINY, 0 * x, x), found)


def _predict(
    one: Outcome, arguments: Sequence[tuple[Any, ...]], device: depth.Device, longest: float
) -> None:
    """Predict the time of a program.

    If its loops do not tell their trips, solve the chain, unless even one trip takes too long.
    """
    variant = one.variant
    cost = least = analyze(variant.run, *one.arguments[0])
    if not cost.exact:
        least = analyze(variant.run, *one.arguments[0], trips=1)
    if variant.solve and call_seconds(least, device) <= longest:
        solutions = [variant.solve(*each) for each in arguments]
        one.row |= solve_statistics(solutions)
        if not cost.exact:
            rest = [_length(solution) - int(solution.stats.prefix) for solution in solutions]
            trips, left = one.row["iterations"], round(sum(rest) / len(rest))
            cost = analyze(variant.run, *one.arguments[0], trips=trips, rest=left)
    seconds = call_seconds(cost if cost.exact else least, device)
    if cost.exact:
        one.cost, one.predicted = cost, seconds
        one.row |= {"depth": cost.depth, "work": cost.work, "predicted ms": 1e3 * seconds}
    if seconds > longest:
        one.note = f"not run: predicted to take {seconds:.3g} s"


def _compile(
    one: Outcome, device: depth.Device | None, anew: bool = False, is_timed: bool = False
) -> None:
    run = one.variant.run
    if not one.variant.is_jax:
        one.build = Build(run, 0.0, 0.0, None)
        return
    if anew:  # as a function that jax has not traced yet
        jax.clear_caches()
        run = lambda *arguments: one.variant.run(*arguments)  # noqa: E731
    one.build = built = build(run, *one.arguments[0])
    if is_timed:
        for name, seconds in (("trace s", built.lower), ("compile s", built.compile)):
            one.row[name] = min(one.row.get(name, math.inf), seconds)
    if built.temporary_bytes is not None:
        one.row["temp MB"] = built.temporary_bytes / 1e6
        if device and built.temporary_bytes > MOST_MEMORY * device.memory > 0:
            one.note = f"not run: needs {built.temporary_bytes / 1e9:.1f} GB"


def _cycled(one: Outcome) -> Callable[[], Any]:
    """A call with the next tuple of arguments."""
    following = cycle(one.arguments)
    assert one.build is not None
    call = one.build.call
    return lambda: call(*next(following))


def _check(one: Outcome, result: Any, expected: Any, exact: Any, case: Case) -> Any:
    """Compare the result of the first call with the expected one, and return that.

    The first result is what is expected of all others.
    """
    found = jax.device_get(one.variant.comparable(result))
    if one.variant.statistics:
        one.row |= one.variant.statistics(result)
    expected = found if expected is None else expected
    one.row["error"] = one.error = distance(found, expected)
    if exact is not None:
        one.row["error, float64"] = distance(found, exact)
    if not one.error <= case.tolerance:
        one.note = f"wrong: differs from {case.plain} by {one.error:.1e}"
    return expected


@contextmanager
def _noting(one: Outcome) -> Iterator[None]:
    """Turn an error of XLA, such as too little memory, into a note: other programs go on."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        _fail(one, error)


def _fail(one: Outcome, error: Exception) -> None:
    one.note = f"failed: {str(error).strip().partition(chr(10))[0][:200]}"


def distance(result: Any, expected: Any) -> float:
    """The largest difference of two pytrees, relative to the largest entry of its array."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        with np.errstate(all="ignore"):  # after an overflow
            apart = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max(initial=0.0)
        relative = apart / (np.abs(b).max(initial=0.0) or 1.0)
        worst = max(worst, math.inf if math.isnan(relative) else float(relative))
    return worst


def solve_statistics(solutions: Sequence[Any]) -> Row:
    """Statistics of solves: mean iterations, the largest residual, the worst result."""
    counts = [int(solution.stats.iterations) for solution in solutions]
    worst = max(Result(int(solution.result)) for solution in solutions)
    return {
        "iterations": round(sum(counts) / len(counts)),
        "residual": max(float(solution.stats.residual) for solution in solutions),
        "ended": worst.name.lower().replace("_", " "),
    }


def _length(solution: Any) -> int:
    return len(jax.tree.leaves(solution.trajectory)[0])
