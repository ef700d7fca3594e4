"""Two programs that compute the same, side by side: does the one of less depth pay off?"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from depth.analysis import analyze_all
from depth.cost import Cost, bounded, predict, reasons
from depth.device import Device, find_device
from depth.reader import TripCounts
from depth.report import count, seconds, table


@dataclass(frozen=True)
class Comparison:
    """The costs of a sequential and of a parallel program, and what they take on a device.

    Attributes:
        sequential: The cost of the first.
        parallel: The cost of the second.
        device: What the times are for; None if no device was given, and then there are none.
        sequential_seconds: The predicted time of the first.
        parallel_seconds: The predicted time of the second.
    """

    sequential: Cost
    parallel: Cost
    device: Device | None = None
    sequential_seconds: float | None = None
    parallel_seconds: float | None = None

    @property
    def depth_speedup(self) -> float:
        """How many times shallower the parallel program is: the speedup of unlimited processors."""
        return _ratio(
            self.sequential.depth,
            max(self.parallel.depth, 1) if self.sequential.depth else self.parallel.depth,
        )

    @property
    def work_ratio(self) -> float:
        """How many times the work of the sequential program the parallel one does."""
        return _ratio(
            self.parallel.work,
            max(self.sequential.work, 1) if self.parallel.work else self.sequential.work,
        )

    @property
    def predicted_speedup(self) -> float | None:
        """How many times faster the parallel program is on the device; below 1 it is slower."""
        if self.sequential_seconds is None or self.parallel_seconds is None:
            return None
        return _ratio(self.sequential_seconds, self.parallel_seconds)

    @property
    def exact(self) -> bool:
        """Whether both depths are known, not only bounded from below."""
        return self.sequential.exact and self.parallel.exact

    def __str__(self) -> str:
        a, b = self.sequential, self.parallel
        rows = [
            ("depth", bounded(a), bounded(b), f"{self.depth_speedup:.3g}x less"),
            ("work", count(a.work), count(b.work), f"{self.work_ratio:.3g}x as much"),
            ("bytes", count(a.bytes), count(b.bytes)),
            ("traffic", count(a.traffic), count(b.traffic)),
        ]
        if (
            self.device
            and self.sequential_seconds is not None
            and self.parallel_seconds is not None
        ):
            times = seconds(self.sequential_seconds), seconds(self.parallel_seconds)
            said = f"{self.predicted_speedup:.3g}x as fast, predicted for {self.device.name}"
            rows.append(("time", *times, said))
        text = table(("", "sequential", "parallel"), rows, "<>><")
        return "\n".join([text, *reasons(tuple(dict.fromkeys((*a.unknown, *b.unknown))))])


def _ratio(a: float, b: float) -> float:
    """How many times b a is; 1 for nothing of nothing."""
    return a / b if b else (inf if a else 1.0)


def compare(
    sequential_fn: Callable[..., Any],
    parallel_fn: Callable[..., Any],
    *args: Any,
    device: Device | str | None = None,
    trip_counts: TripCounts = None,
) -> Comparison:
    """The costs of two programs on the same arguments; with a device, their times.

    Args:
        sequential_fn: A function that jax can trace.
        parallel_fn: Another, which should compute the same.
        *args: What both are called with: arrays, `jax.ShapeDtypeStruct`, or pytrees of them.
        device: A `Device`, as `depth.calibrate` returns it, or the name of one of `depth.devices`;
            None for no times.
        trip_counts: As in `analyze`; a source line may be of either program.

    Returns:
        The `Comparison`; printed, a table.

    Example:
        >>> import depth, jax
        >>> x = jax.ShapeDtypeStruct((1024,), "float32")
        >>> one_by_one = lambda x: jax.lax.scan(lambda s, x: (s + x, s + x), x[0], x)[1]
        >>> in_a_tree = lambda x: jax.lax.associative_scan(jax.numpy.add, x)
        >>> comparison = depth.compare(one_by_one, in_a_tree, x, device="H100")
        >>> comparison.sequential.depth, comparison.parallel.depth
        (1024, 30)
        >>> comparison.predicted_speedup > 10
        True
    """
    model = None if device is None else find_device(device)
    sequential, parallel = analyze_all((sequential_fn, parallel_fn), args, trip_counts)
    if model is None:
        return Comparison(sequential, parallel)
    return Comparison(
        sequential, parallel, model, predict(sequential, model), predict(parallel, model)
    )
