"""The depth of a program, by output, and the operations on its critical path."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from depth.counts import traffic
from depth.graph import Block, Node, explain
from depth.jaxprs import Location
from depth.maxplus import Algebra
from depth.primitives import primitive


@dataclass(frozen=True)
class Operations:
    """The equations of one primitive and source line on the critical path of a `Cost`.

    Attributes:
        primitive: The name of the primitive.
        location: The source line.
        count: The number of equations on the path.
        depth: Their depth in all, in operations.
        work: Their arithmetic operations in all.
        bytes: The bytes that they read and write in all.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> cost = depth.analyze(jnp.sin, jax.ShapeDtypeStruct((8,), "float32"))
        >>> cost.critical_path[0].primitive, cost.critical_path[0].work
        ('sin', 8)
    """

    primitive: str
    location: Location
    count: int
    depth: int
    work: int
    bytes: int

    def plus(self, other: "Operations", times: int) -> "Operations":
        """The sum of these and ``times`` the others, of the same primitive and line."""
        sums = (
            getattr(self, name) + times * getattr(other, name)
            for name in ("count", "depth", "work", "bytes")
        )
        return Operations(self.primitive, self.location, *sums)


class Paths:
    """The longest paths through a graph, computed when they are first accessed.

    Pickled copies hold the computed results and no jaxpr.
    """

    def __init__(self, block: Block, structure: Any = None):
        self._block, self._structure = block, structure

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("by_output", "critical_path", "depth")}

    @cached_property
    def _algebra(self) -> Algebra:
        return Algebra.up_to(self._block.longest)

    @cached_property
    def _depths(self) -> tuple[int, ...]:
        """The depth of every output of the graph."""
        ready = self._block.ready(self._algebra, [0] * (self._block.inputs + 1))
        return tuple(max(ready[slot], 0) for slot in self._block.outputs)

    @cached_property
    def depth(self) -> int:
        """The longest path to any output."""
        return max(self._depths, default=0)

    @cached_property
    def by_output(self) -> Any:
        """The longest path to every output, in a pytree like the program's result."""
        return self._depths if self._structure is None else self._structure.unflatten(self._depths)

    @cached_property
    def critical_path(self) -> tuple[Operations, ...]:
        """The operations on a longest path, those of the most depth first."""
        if not self._depths:
            return ()
        latest = self._depths.index(self.depth)
        return _operations(explain(self._algebra, self._block, latest))


def deepest_first(rows: list[Operations]) -> tuple[Operations, ...]:
    """Operations in the order of the printed table."""
    return tuple(sorted(rows, key=lambda row: (-row.depth, row.primitive, row.location)))


def _operations(nodes: list[tuple[Node, Location, int]]) -> tuple[Operations, ...]:
    """The nodes with a depth, by primitive and source line."""
    sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for node, where, count in nodes:
        if node.depth:
            equation = node.equation
            work = primitive(equation).work(equation)
            entry = sums[equation.primitive.name, where]
            for i, amount in enumerate((1, node.depth, work, traffic(equation))):
                entry[i] += count * amount
    return deepest_first([Operations(*key, *entry) for key, entry in sums.items()])
