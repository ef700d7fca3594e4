"""Wall-clock times: calls interleaved and blocked on, compile time apart."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from experiments.bench.progress import PROGRESS


@dataclass(frozen=True)
class Timing:
    """The times of one function.

    Attributes:
        seconds: wall-clock time of each call.
        processor: seconds of all cores for a call, one number for each round: of this process, so
            on an accelerator that of the host.
    """

    seconds: tuple[float, ...]
    processor: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """The median time."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Effort:
    """How long functions are timed.

    Attributes:
        rounds: number of rounds; every function is called in each.
        share: seconds of one function in a round; short calls scatter more, so they are repeated.
        most: most calls of one function in a round.
        patience: seconds of all calls of one function: one that takes as long is called once.
        slow: a function that takes this many times as long as the fastest is called in only two
            rounds.
    """

    rounds: int = 7
    share: float = 0.01
    most: int = 20
    patience: float = 3.0
    slow: float = math.inf


def clock(function: Callable[[], Any]) -> float:
    """Seconds from the call of ``function`` until its result has been computed."""
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def interleave(
    functions: Mapping[str, Callable[[], Any]],
    effort: Effort,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Timing]:
    """Time functions in rounds, A B C A B C ...: a machine that slows down slows all of them.

    Args:
        functions: functions without arguments, by name; each has been called before.
        effort: how long they are timed.
        failed: called with the name and the error of a function that fails, after which the others
            go on; None to raise the error.

    Returns:
        The times of each function that was called, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    processor: dict[str, list[float]] = {name: [] for name in functions}
    running = dict(functions)
    for number in range(effort.rounds):
        fastest = min((min(times) for times in seconds.values() if times), default=math.inf)
        for name, function in list(running.items()):
            times = seconds[name]
            least = min(times, default=math.inf)
            if times and sum(times) + times[-1] > effort.patience:
                continue
            if number > 1 and least > effort.slow * fastest:
                continue
            PROGRESS.say(f"timing {name}, round {number + 1} of {effort.rounds}")
            calls = max(1, min(effort.most, int(effort.share / least)))
            try:
                # Not counted: the function before it may still give its memory back to the system,
                # as 600 MB of an unrolled loop, which doubled the next one's time.
                jax.block_until_ready(function())
                start = time.process_time()
                times += [clock(function) for _ in range(calls)]
                processor[name].append((time.process_time() - start) / calls)
            except jax.errors.JaxRuntimeError as error:
                if failed is None:
                    raise
                failed(name, error)
                del running[name]
    return {
        name: Timing(tuple(times), tuple(processor[name]))
        for name, times in seconds.items()
        if times
    }


@dataclass(frozen=True)
class Build:
    """A program compiled for one tuple of arguments.

    Attributes:
        call: the compiled program.
        lower: seconds to trace and lower it.
        compile: seconds to compile it.
        temporary_bytes: memory besides arguments and results; None where unknown.
    """

    call: Callable[..., Any]
    lower: float
    compile: float
    temporary_bytes: int | None


def build(
    function: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None
) -> Build:
    """Lower and compile ``function`` for ``args`` with options of XLA, and time both."""
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    start = time.perf_counter()
    lowered = jitted.lower(*args)
    middle = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(options) if options else None)
    end = time.perf_counter()
    memory = compiled.memory_analysis()
    temporary = None if memory is None else int(memory.temp_size_in_bytes)
    return Build(compiled, middle - start, end - middle, temporary)
