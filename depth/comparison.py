"""Compare two programs that compute the same: does the one of less depth pay off?"""

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
    """The costs of a sequential and a parallel program. Returned by `compare`.

    Attributes:
        sequential: The `Cost` of the sequential program.
        parallel: The `Cost` of the parallel program.
        device: The device of the predicted times; None if none was given.
        sequential_seconds: The predicted time of the sequential program in seconds; None without a
            device.
        parallel_seconds: The predicted time of the parallel program in seconds; None without a
            device.

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
    def depth_speedup(self) -> float:
        """The speedup of the parallel program on unlimited processors: the ratio of depths."""
        return _ratio(
            self.sequential.depth,
            max(self.parallel.depth, 1) if self.sequential.depth else self.parallel.depth,
        )

    @property
    def work_ratio(self) -> float:
        """The work of the parallel program over that of the sequential one."""
        return _ratio(
            self.parallel.work,
            max(self.sequential.work, 1) if self.parallel.work else self.sequential.work,
        )

    @property
    def predicted_speedup(self) -> float | None:
        """The predicted speedup of the parallel program on the device; None without a device."""
        if self.sequential_seconds is None or self.parallel_seconds is None:
            return None
        return _ratio(self.sequential_seconds, self.parallel_seconds)

    @property
    def exact(self) -> bool:
        """Whether both depths are exact, rather than lower bounds."""
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
    """The ratio of a to b; 1 if both are zero."""
    return a / b if b else (inf if a else 1.0)


def compare(
    sequential_fn: Callable[..., Any],
    parallel_fn: Callable[..., Any],
    *args: Any,
    device: Device | str | None = None,
    trip_counts: TripCounts = None,
) -> Comparison:
    """Compare the costs of two programs on the same arguments, and their times on a device.

    Args:
        sequential_fn: A function that jax can trace.
        parallel_fn: Another function, which should compute the same. This is not checked.
        *args: The arguments of both: arrays, `jax.ShapeDtypeStruct`, or pytrees of them.
        device: A `Device`, as `depth.calibrate` returns it, or the name of one in `depth.devices`;
            None for no times.
        trip_counts: As in `analyze`; a source line may belong to either program.

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
    model = None if device is None else find_device(device)
    sequential, parallel = analyze_all((sequential_fn, parallel_fn), args, trip_counts)
    if model is None:
        return Comparison(sequential, parallel)
    return Comparison(
        sequential, parallel, model, predict(sequential, model), predict(parallel, model)
    )
