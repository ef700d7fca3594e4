"""Compare two programs that compute the same: does the one of less depth pay off?"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from depth.analysis import analyze_all
from depth.cost import Cost, bounded, call_seconds, reasons
from depth.device import Device
from depth.models import find_device, in_place
from depth.reader import TripCounts
from depth.report import count, seconds, table


class Ratio(NamedTuple):
    """The bounds of a ratio of two numbers, each of which may be a lower bound."""

    least: float
    most: float

    @property
    def value(self) -> float | None:
        """The ratio; None if it is only bounded."""
        return self.least if self.least == self.most else None

    def said(self, what: str) -> str:
        """The ratio in words; two lower bounds have none."""
        if self.value is not None:
            return f"{self.value:.3g}x {what}"
        if self.most < inf:
            return f"at most {self.most:.3g}x {what}"
        return f"at least {self.least:.3g}x {what}" if self.least else "unknown: lower bounds"


@dataclass(frozen=True)
class Comparison:
    """The costs of a sequential and a parallel program. Returned by `compare`.

    A cost with unknown parts is a lower bound. Then a ratio has a bound on one side, or on none, if
    both costs are lower bounds, and it is no number: ``depth_bounds`` and ``time_bounds`` tell what
    is known of it.

    Attributes:
        sequential: The `Cost` of the sequential program.
        parallel: The `Cost` of the parallel program.
        device: The device of the predicted times; None if none was given.
        sequential_seconds: The predicted time of the sequential program in seconds, a lower bound
            if ``sequential`` is one; None without a device.
        parallel_seconds: The same of the parallel program.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((1024,), "float32")
        >>> comparison = depth.compare(jnp.cumsum, jnp.sum, x)
        >>> comparison.exact, comparison.predicted_speedup is None
        (True, True)
    """

    sequential: Cost
    parallel: Cost
    device: Device | None = None
    sequential_seconds: float | None = None
    parallel_seconds: float | None = None

    @property
    def depth_bounds(self) -> Ratio:
        """The least and the largest speedup on unlimited processors."""
        above, below = self.sequential.depth, self.parallel.depth
        return _ratio(above, max(below, 1) if above else below, self.sequential, self.parallel)

    @property
    def depth_speedup(self) -> float | None:
        """The speedup of the parallel program on unlimited processors: the ratio of depths.

        None if a depth is only a lower bound: see ``depth_bounds``.
        """
        return self.depth_bounds.value

    @property
    def work_ratio(self) -> float | None:
        """The work of the parallel program over that of the sequential one.

        None if one of them is only a lower bound.
        """
        return self._work.value

    @property
    def time_bounds(self) -> Ratio | None:
        """The least and the largest predicted speedup on the device; None without a device.

        Bounds of what is predicted: the prediction itself has an error.
        """
        if self.sequential_seconds is None or self.parallel_seconds is None:
            return None
        times = self.sequential_seconds, self.parallel_seconds
        return _ratio(*times, self.sequential, self.parallel)

    @property
    def predicted_speedup(self) -> float | None:
        """The predicted speedup of the parallel program on the device.

        None without a device, or if a time is only a lower bound: see ``time_bounds``.
        """
        return self.time_bounds.value if self.time_bounds else None

    @property
    def exact(self) -> bool:
        """Whether both depths are exact: neither lower bounds nor estimates."""
        return self.sequential.exact and self.parallel.exact

    @property
    def _work(self) -> Ratio:
        above, below = self.parallel.work, self.sequential.work
        return _ratio(above, max(below, 1) if above else below, self.parallel, self.sequential)

    def __str__(self) -> str:
        a, b = self.sequential, self.parallel
        rows = [
            ("depth", bounded(a), bounded(b), self.depth_bounds.said("less")),
            ("work", count(a.work), count(b.work), self._work.said("as much")),
            ("bytes", count(a.bytes), count(b.bytes)),
            ("traffic", count(a.traffic), count(b.traffic)),
        ]
        if self.device and self.time_bounds:
            times = map(seconds, (self.sequential_seconds or 0.0, self.parallel_seconds or 0.0))
            said = f"{self.time_bounds.said('as fast')}, predicted for {self.device.name}"
            rows.append(("time", *times, said))
        text = table(("", "sequential", "parallel"), rows, "<>><")
        return "\n".join([text, *reasons(a, b)])


def _ratio(above: float, below: float, *costs: Cost) -> Ratio:
    """``above / below``, 1 if both are zero. A number of a cost with unknown parts may grow."""
    ratio = inf if above else 1.0
    if below:
        ratio = above / below
    over, under = (bool(cost.unknown) for cost in costs)
    return Ratio(0.0 if under else ratio, inf if over else ratio)


def compare(
    sequential_fn: Callable[..., Any],
    parallel_fn: Callable[..., Any],
    *args: Any,
    device: Device | str | None = None,
    trip_counts: TripCounts = None,
) -> Comparison:
    """Compare the costs of two programs on the same arguments, and their times on a device.

    Programs that differ between platforms, as those of deeppcr do, are traced for ``device``, else
    for jax's default device.

    Args:
        sequential_fn: A function that jax can trace.
        parallel_fn: Another function, which should compute the same. This is not checked.
        *args: The arguments of both: arrays, `jax.ShapeDtypeStruct`, or pytrees of them.
        device: A `Device`, or the name of one in `depth.devices`; None for no times.
        trip_counts: As in `analyze`; a loop may belong to either program.

    Returns:
        The `Comparison`. Printed, a table.

    Raises:
        TypeError: As in `analyze`.
        ValueError: As in `analyze`; or ``device`` is unknown.

    Example:
        >>> import depth, jax
        >>> x = jax.ShapeDtypeStruct((1024,), "float32")
        >>> sequential = lambda x: jax.lax.scan(lambda s, x: (s + x, s + x), x[0], x)[1]
        >>> parallel = lambda x: jax.lax.associative_scan(jax.numpy.add, x)
        >>> comparison = depth.compare(sequential, parallel, x, device="H100")
        >>> comparison.sequential.depth, comparison.parallel.depth
        (1024, 30)
        >>> comparison.predicted_speedup > 10
        True
    """
    programs = sequential_fn, parallel_fn
    if device is None:
        sequential, parallel = analyze_all(programs, args, trip_counts)
        return Comparison(sequential, parallel)
    model = find_device(device)
    with in_place(model):
        sequential, parallel = analyze_all(programs, args, trip_counts)
    times = call_seconds(sequential, model), call_seconds(parallel, model)
    return Comparison(sequential, parallel, model, *times)
