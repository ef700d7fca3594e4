"""What a program costs: its serial depth, its work and traffic, the critical path, and what could not be known."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from depth.graph import Block
from depth.jaxprs import Location
from depth.kernels import Kernels, Program
from depth.reader import Unknown
from depth.report import count

ROWS = 12  # of a printed table


@dataclass(frozen=True)
class Operations:
    """Equations of one primitive from one source line that lie on the critical path.

    ``count`` of them make up ``depth`` of it; ``work`` and ``bytes`` are theirs together.
    """

    primitive: str
    location: Location
    count: int
    depth: int
    work: int
    bytes: int


@dataclass(frozen=True)
class Cost:
    """What a program costs, whatever it runs on.

    Attributes:
        depth: The longest chain of operations that wait for one another; the least time with unlimited processors, in
            operations. A lower bound where ``exact`` is False.
        work: Arithmetic operations in all.
        bytes: What all equations read and write, every operand and result once for each equation, in bytes.
        by_output: The depth of every output, in a pytree like the program's result.
        critical_path: What makes up the depth, the deepest first; several longest paths are one, chosen arbitrarily.
        unknown: What makes the depth, and perhaps the work, a lower bound.
        graph: What was read; of a copy that was pickled, its kernels and loops, which are plain data.
    """

    depth: int
    work: int
    bytes: int
    by_output: Any
    critical_path: tuple[Operations, ...]
    unknown: tuple[Unknown, ...]
    graph: Block | Program = field(repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without jaxprs, which cannot be pickled."""
        return {**self.__dict__, "graph": self.program}

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

    @cached_property
    def program(self) -> Program:
        """The program as kernels and loops, as `depth.predict` takes it."""
        return self.graph if isinstance(self.graph, Program) else Kernels().program(self.graph)

    def __str__(self) -> str:
        """The score, the critical path by primitive and source line, and what could not be known."""
        lines = [
            f"depth        {'' if self.exact else '>= '}{count(self.depth)}",
            f"work         {count(self.work)} operations, {count(self.parallelism)} for each unit of depth",
            f"traffic      {count(self.bytes)} bytes",
        ]
        if self.critical_path:
            shown, rest = self.critical_path[:ROWS], self.critical_path[ROWS:]
            width = max(len("primitive"), *(len(row.primitive) for row in shown))
            lines += ["", f"{'critical path':>13}  {'count':>11}  {'primitive':<{width}}  line"]
            lines += [
                f"{count(row.depth):>13}  {count(row.count):>11}  {row.primitive:<{width}}  {row.location}"
                for row in shown
            ]
            if rest:
                depth, times = sum(row.depth for row in rest), sum(row.count for row in rest)
                lines.append(f"{count(depth):>13}  {count(times):>11}  in {len(rest)} more rows")
        return "\n".join(lines + reasons(self.unknown))


def reasons(unknown: Sequence[Unknown]) -> list[str]:
    """Lines that say why a depth is a lower bound; none if it is exact."""
    if not unknown:
        return []
    more = [f"  and {len(unknown) - ROWS} more"] if len(unknown) > ROWS else []
    return ["", "a lower bound, since", *(f"  {reason}" for reason in unknown[:ROWS]), *more]
