"""What a program costs: depth, work, traffic, critical path, what could not be known. Costs add up.

``a + b`` is the cost of one program after the other, ``a.repeat(n)`` that of a loop. So a program
that is too large to be traced as a whole is the sum of its pieces, each read once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax

from depth.device import Device, find_device
from depth.graph import Block
from depth.kernels import Kernels, Loop, Program
from depth.paths import Operations, Paths, deepest_first
from depth.prediction import Seconds
from depth.reader import Unknown
from depth.report import count, table

ROWS = 12  # of a printed table
SHOWN = ("depth", "work", "bytes", "by_output", "critical_path", "unknown")


@dataclass(frozen=True, eq=False, repr=False)
class Cost:
    """What a program costs, whatever it runs on.

    `depth.analyze` makes one; ``a + b`` is the cost of one program after the other, and
    ``a.repeat(n)`` that of a loop. Paths and kernels are found when they are first asked for. Costs
    are equal if all numbers and lists in them are.

    Attributes:
        work: Arithmetic operations in all.
        bytes: What all equations read and write, every operand and result once for each equation,
            in bytes.
        unknown: What makes the depth, and perhaps the work, a lower bound.
        paths: The longest paths of the programs that it is the sum of, in order, and how often each
            program runs.
        graph: What was read, or its kernels and loops.

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
    paths: tuple[tuple[Paths, int], ...] = ()
    graph: Block | Program = field(default=Program((), ()))

    @classmethod
    def of(
        cls,
        block: Block,
        unknown: Sequence[Unknown] = (),
        structure: Any = None,
        program: Program | None = None,
    ) -> "Cost":
        """The cost of a graph.

        Args:
            block: What was read.
            unknown: What could not be.
            structure: That of the program's result; None for a tuple.
            program: Its kernels, where they are not those of the graph alone.
        """
        paths = Paths(block, structure)
        return cls(*block.totals, tuple(unknown), ((paths, 1),), program or block)

    def __add__(self, other: "Cost") -> "Cost":
        """One after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(
            self.work + other.work,
            self.bytes + other.bytes,
            tuple(dict.fromkeys((*self.unknown, *other.unknown))),
            (*self.paths, *other.paths),
            self.program + other.program,
        )

    def repeat(self, times: int, counted: bool = True) -> "Cost":
        """As often as ``times``, one after another, in a loop.

        Args:
            times: How often.
            counted: Whether it is known how often before the loop starts; if not, a device asks
                after every iteration.
        """
        return Cost(
            times * self.work,
            times * self.bytes,
            self.unknown,
            tuple((paths, times * often) for paths, often in self.paths),
            Program((), ((Loop(times, self.program, None, counted), 1),)),
        )

    @cached_property
    def depth(self) -> int:
        """The longest chain of operations that wait for one another.

        It is the least time with unlimited processors, in operations; a lower bound where ``exact``
        is False. Of a sum, every program waits for the one before it.
        """
        return sum(often * paths.depth for paths, often in self.paths)

    @cached_property
    def by_output(self) -> Any:
        """The depth of every output, in a pytree like the program's result.

        Of a sum, it is like the result of the last program.
        """
        if not self.paths:
            return ()
        last, often = self.paths[-1]
        ran = min(often, 1)  # a loop of no iterations makes nothing deeper
        before = self.depth - ran * last.depth
        return jax.tree.map(lambda depth: before + ran * depth, last.by_output)

    @cached_property
    def critical_path(self) -> tuple[Operations, ...]:
        """What makes up the depth, the deepest first; one of several longest paths."""
        found: dict[Any, Operations] = {}
        for paths, often in self.paths:
            for row in paths.critical_path:
                key = row.primitive, row.location
                before = found.get(key, Operations(*key, 0, 0, 0, 0))
                found[key] = before.plus(row, often)
        return deepest_first([row for row in found.values() if row.depth])

    @cached_property
    def program(self) -> Program:
        """Its kernels and loops, one after another."""
        return self.graph if isinstance(self.graph, Program) else Kernels().program(self.graph)

    @property
    def traffic(self) -> int:
        """What the kernels read and write, in bytes; less than ``bytes`` where some are fused."""
        return self.program.traffic

    def seconds(self, device: Device | str) -> float:
        """The seconds that the kernels and loops take, without the latency of a call.

        Of a sum, they are the sum of the seconds.
        """
        return Seconds(find_device(device)).program(self.program)

    @property
    def exact(self) -> bool:
        """Whether the depth is known, not only bounded from below."""
        return not self.unknown

    @property
    def critical_work(self) -> int:
        """Arithmetic operations of the equations on the critical path."""
        return sum(operations.work for operations in self.critical_path)

    @property
    def critical_bytes(self) -> int:
        """What the equations on the critical path read and write, in bytes."""
        return sum(operations.bytes for operations in self.critical_path)

    @property
    def parallelism(self) -> float:
        """Work for each unit of depth: how many processors could be kept busy."""
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
        """The score, the critical path by primitive and source line, what could not be known."""
        score = [
            ("depth", bounded(self)),
            (
                "work",
                f"{count(self.work)} operations, {count(self.parallelism)} for each unit of depth",
            ),
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
        return "\n".join(lines + reasons(self.unknown))


def predict(cost: Cost, device: Device | str) -> float:
    """The seconds that a call of the compiled program takes on ``device``.

    What it cannot see: which operations the compiler fuses (`depth.kernels` guesses, the same for
    every device), how well a library's product of a given shape uses the device, what stays in
    which cache, work that overlaps, and layouts. Expect a factor of 1.5 for half of all programs
    and 2 to 3 for most others on a device that was calibrated; on one of `devices`, whose latencies
    are estimates, expect less. Where ``cost`` is a lower bound, so is this.

    Args:
        cost: As `depth.analyze` returns it, or a sum of such.
        device: A `Device`, as `depth.calibrate` returns it, or the name of one of `depth.devices`.

    Returns:
        Seconds.

    Raises:
        TypeError: If ``cost`` is no `Cost`.
        ValueError: If ``device`` is no `Device` and no name of one.

    Example:
        >>> import depth, jax
        >>> x = jax.ShapeDtypeStruct((1024, 1024), "float32")
        >>> cost = depth.analyze(lambda x: x @ x, x)
        >>> 1e-5 < depth.predict(cost, "H100") < 1e-3
        True
    """
    if not isinstance(cost, Cost):
        raise TypeError(
            f"cost must be a depth.Cost, as of depth.analyze, but it is {type(cost).__name__}"
        )
    model = find_device(device)
    return model.call_latency + cost.seconds(model)


def bounded(cost: Cost) -> str:
    """The depth in words, with a sign before it where it is a lower bound."""
    return f"{'' if cost.exact else '>= '}{count(cost.depth)}"


def reasons(unknown: Sequence[Unknown]) -> list[str]:
    """Lines that say why a depth is a lower bound; none if it is exact."""
    if not unknown:
        return []
    more = [f"  and {len(unknown) - ROWS} more"] if len(unknown) > ROWS else []
    return ["", "a lower bound, since", *(f"  {reason}" for reason in unknown[:ROWS]), *more]
