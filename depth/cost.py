"""The cost of a program: depth, work, traffic, critical path, unknown parts. Costs add up.

``a + b`` is the cost of two programs that run one after the other, and ``a.repeat(n)`` is the cost
of a loop. So the cost of a program that is too large to trace is the sum of those of its parts.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import jax

from depth.device import Device
from depth.fusion import Kernels
from depth.graph import Block
from depth.kernels import KernelLoop, KernelProgram
from depth.loops import Expected
from depth.models import find_device
from depth.paths import Operations, Paths, summed
from depth.prediction import seconds_of
from depth.reader import Unknown
from depth.report import count, table

ROWS = 12  # of a printed table
SHOWN = ("depth", "work", "bytes", "by_output", "critical_path", "unknown", "expected")


class LowerBoundWarning(UserWarning):
    """A depth that is returned as a number is only a lower bound.

    Example:
        >>> import depth, jax, warnings
        >>> halve = lambda x: jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     found = depth.serial_depth(halve, jax.ShapeDtypeStruct((), "float32"))
        >>> caught[0].category.__name__
        'LowerBoundWarning'
    """


class EstimateWarning(UserWarning):
    """A depth that is returned as a number counts an expected number of trips.

    Example:
        >>> import depth, jax, warnings
        >>> def halve(x):
        ...     with depth.loops.named_loop("halving", 10, by="me"):
        ...         return jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     found = depth.serial_depth(halve, jax.ShapeDtypeStruct((), "float32"))
        >>> caught[0].category.__name__
        'EstimateWarning'
    """


@dataclass(frozen=True, eq=False, repr=False)
class Cost:
    """The cost of a program, independent of any device. Returned by `analyze`.

    ``a + b`` is the cost of two programs that run one after the other, and ``a.repeat(n)`` is the
    cost of a loop. Paths and kernels are computed when they are first accessed. Two costs are equal
    if all their numbers and lists are. Printed, a table with the critical path.

    Attributes:
        work: The number of arithmetic operations.
        bytes: The bytes that all equations read and write, counting every operand and result of
            each equation.
        unknown: The reasons why the depth, and possibly the work, is a lower bound; empty if it is
            none.
        expected: The loops whose number of trips is expected, not proven; the depth is then an
            estimate, or a lower bound of an estimate.
        paths: The longest paths of the added programs, in order, each with its number of runs.
        graph: The equations as a graph, or the kernels and loops of the program.
        arrays: The number of arguments and results.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((8,), "float32")
        >>> sines = depth.analyze(jnp.sin, x).repeat(10)
        >>> total = sines + depth.analyze(jnp.sum, x)
        >>> total.depth, total.work  # ten sines, then a tree over 8
        (13, 87)
        >>> sines.seconds("H100") < total.seconds("H100")
        True
    """

    work: int = 0
    bytes: int = 0
    unknown: tuple[Unknown, ...] = ()
    expected: tuple[Expected, ...] = ()
    paths: tuple[tuple[Paths, int], ...] = ()
    graph: Block | KernelProgram = field(default=KernelProgram((), ()))
    arrays: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """The cost of both programs, one after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(
            self.work + other.work,
            self.bytes + other.bytes,
            tuple(dict.fromkeys((*self.unknown, *other.unknown))),
            tuple(dict.fromkeys((*self.expected, *other.expected))),
            (*self.paths, *other.paths),
            self.program + other.program,
            max(self.arrays, other.arrays),
        )

    def repeat(self, times: int, counted: bool = True) -> "Cost":
        """The cost of a loop over the program.

        Args:
            times: The number of trips, an integer >= 0.
            counted: Whether the number of trips is known before the loop starts. If not, the device
                tests a condition in every trip.

        Returns:
            The cost of the loop.

        Example:
            >>> import depth, jax, jax.numpy as jnp
            >>> sine = depth.analyze(jnp.sin, jax.ShapeDtypeStruct((8,), "float32"))
            >>> sine.repeat(10).depth
            10
        """
        return replace(
            self,
            work=times * self.work,
            bytes=times * self.bytes,
            paths=tuple((paths, times * often) for paths, often in self.paths),
            graph=KernelProgram((), ((KernelLoop(times, self._in_order, None, counted), 1),)),
        )

    @cached_property
    def depth(self) -> int:
        """The length of the longest chain of dependent operations, also called span.

        This is the time on unlimited processors, in operations; a lower bound if ``exact`` is
        False. The programs of a sum run one after another.
        """
        return sum(often * paths.depth for paths, often in self.paths)

    @cached_property
    def by_output(self) -> Any:
        """The depth of every output in operations, in a pytree like the program's result.

        For a sum, the result is that of the last program.
        """
        if not self.paths:
            return ()
        last, often = self.paths[-1]
        ran = min(often, 1)  # a loop of no iterations makes nothing deeper
        before = self.depth - ran * last.depth
        return jax.tree.map(lambda depth: before + ran * depth, last.by_output)

    @cached_property
    def critical_path(self) -> tuple[Operations, ...]:
        """The operations on one longest path, those of the most depth first."""
        counts = Counter[Operations]()
        for paths, often in self.paths:
            for row in paths.critical_path:
                counts[row] += often
        return summed(counts)

    @cached_property
    def program(self) -> KernelProgram:
        """Its kernels and loops, in order."""
        return (
            self.graph if isinstance(self.graph, KernelProgram) else Kernels().program(self.graph)
        )

    @property
    def _in_order(self) -> KernelProgram:
        """The program as a trip of a loop, whose kernels wait for one another."""
        waits = sum(kernel.waits * often for kernel, often in self.program.kernels)
        return replace(self.program, path=waits)

    @property
    def traffic(self) -> int:
        """The bytes that kernels read and write: less than ``bytes`` where equations are fused."""
        return self.program.traffic

    def seconds(self, device: Device | str) -> float:
        """The predicted seconds of all kernels and loops, without the latency of a call.

        Args:
            device: A `Device`, or the name of one in `depth.devices`.

        Raises:
            ValueError: If ``device`` is unknown.
        """
        return seconds_of(self.program, find_device(device))

    @property
    def exact(self) -> bool:
        """Whether the depth is exact: neither a lower bound nor an estimate."""
        return not (self.unknown or self.expected)

    @property
    def parallelism(self) -> float:
        """Work over depth: the number of processors that the program could keep busy."""
        return self.work / max(self.depth, 1)

    def __getstate__(self) -> dict[str, Any]:
        """Without jaxprs, which cannot be pickled."""
        return {**self.__dict__, "graph": self.program}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cost):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in SHOWN)

    def __hash__(self) -> int:
        return hash((self.work, self.bytes, self.unknown))

    def __repr__(self) -> str:
        return f"Cost({', '.join(f'{name}={getattr(self, name)!r}' for name in SHOWN)})"

    def __str__(self) -> str:
        """The totals, the critical path by primitive and source line, and the unknown parts."""
        parallelism = f"{count(self.parallelism)} for each unit of depth"
        score = [
            ("depth", bounded(self)),
            ("work", f"{count(self.work)} operations, {parallelism}"),
            ("bytes", f"{count(self.bytes)}, each operation by itself"),
            ("traffic", f"{count(self.traffic)} bytes, as kernels"),
        ]
        lines = [table((), score, "<<")]
        if self.critical_path:
            shown, rest = self.critical_path[:ROWS], self.critical_path[ROWS:]
            rows: list[tuple[str, ...]] = [
                (count(row.depth), count(row.count), row.primitive, str(row.location))
                for row in shown
            ]
            if rest:
                depth, times = sum(row.depth for row in rest), sum(row.count for row in rest)
                rows.append((count(depth), count(times), f"in {len(rest)} more rows"))
            lines += ["", table(("critical path", "count", "primitive", "line"), rows, ">><<")]
        return "\n".join(lines + reasons(self))


def predict(cost: Cost, device: Device | str) -> float:
    """The seconds that a call of the compiled program takes on ``device``.

    What it cannot see: which operations the compiler fuses (`depth.fusion` guesses, the same for
    every device), how well a library's product of a given shape uses the device, what stays in
    which cache, work that overlaps, and layouts. Expect a factor of 1.5 for half of all programs
    and 2 to 3 for most others; on one of `devices`, whose latencies are estimates, expect less.
    Where ``cost`` is a lower bound, so is this, and where it counts an expected number of trips, so
    does this.

    Args:
        cost: A `Cost`, as `depth.analyze` returns it, or a sum of such.
        device: A `Device`, or the name of one in `depth.devices`.

    Returns:
        Seconds, including the latency of one call.

    Raises:
        TypeError: If ``cost`` is not a `Cost`.
        ValueError: If ``device`` is neither a `Device` nor the name of one.

    Warns:
        LowerBoundWarning: If a part of the program is unknown, so that it may take longer.

    Example:
        >>> import depth, jax
        >>> x = jax.ShapeDtypeStruct((1024, 1024), "float32")
        >>> cost = depth.analyze(lambda x: x @ x, x)
        >>> 1e-5 < depth.predict(cost, "H100") < 1e-3
        True
    """
    if not isinstance(cost, Cost):
        raise TypeError(
            f"cost must be a depth.Cost, as depth.analyze returns, but it is {type(cost).__name__}"
        )
    warn_of_bound(cost, "time", stacklevel=3)
    return call_seconds(cost, find_device(device))


def call_seconds(cost: Cost, device: Device) -> float:
    """`predict` without checks and warnings."""
    call = device.call_latency + cost.arrays * device.array_latency
    return call + cost.seconds(device)


def warn_of_bound(cost: Cost, what: str, stacklevel: int) -> None:
    """Warn if a number taken from ``cost`` is only a lower bound: it cannot say so itself."""
    if cost.unknown:
        warnings.warn(
            f"the {what} is a lower bound, because of {first_of(cost.unknown)}. "
            "depth.analyze(...) lists every reason.",
            LowerBoundWarning,
            stacklevel=stacklevel,
        )


def first_of(entries: Sequence[Any]) -> str:
    """The first entry, and the number of others."""
    return f"{entries[0]}" + (f"; {len(entries) - 1} more" if len(entries) > 1 else "")


def bounded(cost: Cost) -> str:
    """The depth as text, after ">=" if it is a lower bound, or "~" if it is an estimate."""
    sign = ""
    if cost.unknown:
        sign = ">= "
    elif cost.expected:
        sign = "~ "
    return f"{sign}{count(cost.depth)}"


def reasons(*costs: Cost) -> list[str]:
    """The reasons why a depth is a lower bound or an estimate, as lines; none if it is exact."""
    unknown = dict.fromkeys(chain.from_iterable(cost.unknown for cost in costs))
    expected = dict.fromkeys(chain.from_iterable(cost.expected for cost in costs))
    return [
        *_listed("a lower bound, since", unknown),
        *_listed("an estimate, since trips of loops are not proven", expected),
    ]


def _listed(head: str, entries: Iterable[Any]) -> list[str]:
    lines = [f"  {entry}" for entry in entries]
    more = [f"  and {len(lines) - ROWS} more"] if len(lines) > ROWS else []
    return ["", head, *lines[:ROWS], *more] if lines else []
