"""Wall-clock times that can be compared: calls in turn, blocked on, compile time kept apart."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Timing:
    """The seconds that each call of one function took."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle time: what one call usually takes."""
        return statistics.median(self.seconds)

    @property
    def minimum(self) -> float:
        """The least time: what it takes when nothing else runs."""
        return min(self.seconds)

    @property
    def maximum(self) -> float:
        """The greatest time."""
        return max(self.seconds)

    @property
    def count(self) -> int:
        """How many calls were timed."""
        return len(self.seconds)


def clock(function: Callable[[], Any]) -> float:
    """Seconds from the call of `function` until all that it returns has been computed."""
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def interleave(
    functions: Mapping[str, Callable[[], Any]], repeats: int = 7, warmup: int = 1
) -> dict[str, Timing]:
    """Time functions in turn, A B C A B C ..., so that a machine that slows down slows all of them.

    Args:
        functions: what to call, without arguments, by name.
        repeats: how often each is timed.
        warmup: calls of each before the first that counts: they compile, and fill caches.

    Returns:
        The times of each function, by name.
    """
    if repeats < 1:
        raise ValueError(f"repeats has to be at least 1, got {repeats}")
    for _ in range(warmup):
        for function in functions.values():
            clock(function)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            seconds[name].append(clock(function))
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


@dataclass(frozen=True)
class Build:
    """One program compiled for one set of arguments, and what that cost.

    Attributes:
        call: the compiled program; it takes the arguments it was compiled for.
        lower: seconds to trace and lower it.
        compile: seconds that XLA took.
        temporary_bytes: memory beside arguments and results; None where the backend does not say.
    """

    call: Callable[..., Any]
    lower: float
    compile: float
    temporary_bytes: int | None


def build(function: Callable[..., Any], *args: Any) -> Build:
    """Lower and compile `function` for `args`, and time both; jitted first if it is not yet."""
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    start = time.perf_counter()
    lowered = jitted.lower(*args)
    middle = time.perf_counter()
    compiled = lowered.compile()
    end = time.perf_counter()
    memory = compiled.memory_analysis()
    temporary = None if memory is None else int(memory.temp_size_in_bytes)
    return Build(compiled, middle - start, end - middle, temporary)
