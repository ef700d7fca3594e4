"""A candidate for a chain, and what its time consists of."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from deeppcr._plan.names import Fixed
from deeppcr.adjoint import Adjoint
from deeppcr.linear import name_of
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from depth import Cost, Device
from depth.kernels import Loop, Program
from depth.prediction import Seconds

AUTODIFF = "autodiff"
LATENCIES: dict[str, Any] = dict.fromkeys(
    ("kernel_latency", "loop_latency", "trip_latency", "piece_latency"), 0.0
) | {"step_latencies": {}}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One combination of a method and an adjoint for a chain.

    Attributes:
        method: the method.
        adjoint: the adjoint; None for a forward pass.
        cost: its depth, work and traffic.
        memory: approximate bytes of intermediate arrays.
        seconds: the predicted time on the device.
        iterations: of Newton's method; 0 for others.
        iteration_seconds: the predicted time of one iteration.
        measured: the measured seconds of a trial; None without one.
        rewritten: of jax's own derivative: whether it is that of the loop with small products
            written out, or of the loop as it is.
        unroll: of jax's own derivative: the steps in a trip of its loops.
        on_request: whether it is taken on request only: never chosen.
    """

    method: Fixed
    adjoint: Adjoint | str | None
    cost: Cost
    memory: int
    seconds: float
    iterations: int = 0
    iteration_seconds: float = 0.0
    measured: float | None = None
    rewritten: bool = True
    unroll: int = 1
    on_request: bool = False

    @property
    def time(self) -> float:
        """Seconds, measured if available, else predicted."""
        return self.seconds if self.measured is None else self.measured

    @property
    def name(self) -> str:
        """A short name."""
        if isinstance(self.method, Newton):
            method = f"Newton, {self.method.linearize}, {name_of(self.method.linear)}"
        else:
            unroll = self.method.unroll
            method = "sequential" + (f", unroll {unroll}" if unroll > 1 else "")
            method += ", fused" if self.method.fused else ""
        if self.adjoint is None:
            return method
        if isinstance(self.adjoint, Adjoint):
            return f"{method} / blocks, {name_of(self.adjoint.linear)}"
        trip = f", unroll {self.unroll}" if self.unroll > 1 else ""
        return f"{method} / {self.adjoint}{trip}"

    @property
    def is_sequential(self) -> bool:
        """Whether it is the sequential program, and jax's own derivative of it."""
        return self.method == Sequential() and self.adjoint in (None, AUTODIFF)


def speedup(candidate: Candidate, sequential: Candidate) -> float:
    """The speedup, by measured times if both are available."""
    if candidate.measured is not None and sequential.measured is not None:
        return sequential.measured / candidate.measured
    return sequential.seconds / candidate.seconds


def busy_seconds(cost: Cost, device: Device) -> float:
    """The time of the arithmetic: no latencies, small products at the rate of large ones."""
    rates = {**device.vector_rates, "contraction": max(device.rates.values())}
    return cost.seconds(device.replace(**LATENCIES, vector_rates=rates))


def least_seconds(cost: Cost, device: Device) -> float:
    """The time of the arithmetic at the highest rate: a lower bound."""
    return cost.work / max(*device.rates.values(), *device.vector_rates.values())


def iteration_seconds(cost: Cost, device: Device) -> float:
    """The time of one trip of the loop whose end depends on data."""
    parts = [part for part, _ in cost.program.parts if isinstance(part, Loop) and not part.counted]
    trips = (Program((), ((dataclasses.replace(part, trips=1), 1),)) for part in parts)
    return max(Cost(graph=trip).seconds(device) for trip in trips)


def loops_of(program: Program) -> Iterator[Loop]:
    """The outermost loops of a program."""
    for part, _ in program.parts:
        if isinstance(part, Loop):
            yield part
        elif isinstance(part, Program):
            yield from loops_of(part)


def is_whole(candidate: Candidate, device: Device) -> bool:
    """Whether a CPU runs each of its loops as one function, without a call for each kernel.

    No other gradient is much faster than that of such a loop: it would pass more than once through
    the arrays of all steps. It took 0.8 to 3 times as long on 16 chains (jax 0.10.2).
    """
    if not device.small_loop:
        return False
    loops = list(loops_of(candidate.cost.program))
    return bool(loops) and all(map(Seconds(device).is_one_function, loops))
