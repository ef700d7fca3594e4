"""The depth of a program, by output, and the operations on its critical path."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from depth.counts import traffic
from depth.graph import Block, Node
from depth.jaxprs import Location, location
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


def summed(counts: Mapping[Operations, int]) -> tuple[Operations, ...]:
    """Operations, each so often: a row for each primitive and line, those of the most depth first.

    This is the order of the printed table.
    """
    sums: dict[tuple[str, Location], list[int]] = {}
    for row, often in counts.items():
        amounts = row.count, row.depth, row.work, row.bytes
        before = sums.get((row.primitive, row.location), [0] * len(amounts))
        sums[row.primitive, row.location] = [
            total + often * amount for total, amount in zip(before, amounts, strict=True)
        ]
    rows = [Operations(*key, *entry) for key, entry in sums.items()]
    rows.sort(key=lambda row: (-row.depth, row.primitive, row.location))
    return tuple(row for row in rows if row.depth)


class Itemised(Algebra):
    """Depths with the number of operations of each kind, as the digits of one integer.

    The depth is the leading digit, and every digit is wide enough for the longest path, so the
    largest number is that of a longest path, and says what it consists of.
    """

    def __init__(self, top: Block):
        self._items: dict[Operations, int] = {}
        self._digit: dict[int, int] = {}  # by id of the node
        for block in top.programs():
            for node in block.nodes:
                if node.depth:
                    equation = node.equation
                    where = location(node.equation, block.caller)
                    amounts = node.depth, primitive(equation).work(equation), traffic(equation)
                    row = Operations(equation.primitive.name, where, 1, *amounts)
                    self._digit[id(node)] = self._items.setdefault(row, len(self._items))
        self._bits = top.longest.bit_length() + 1
        super().__init__((top.longest + 1) << self._bits * len(self._items))

    def weight(self, node: Node) -> int:
        """The depth of a node, and one of its kind."""
        leading = node.depth << self._bits * len(self._items)
        return leading | 1 << self._bits * self._digit[id(node)]

    def items(self, number: int) -> Counter[Operations]:
        """The operations on the path of a number."""
        mask = (1 << self._bits) - 1
        counts = {row: number >> self._bits * k & mask for row, k in self._items.items()}
        return Counter({row: count for row, count in counts.items() if count})


class Paths:
    """The longest paths through a graph, computed when they are first accessed.

    Pickled copies hold the computed results and no jaxpr.
    """

    def __init__(self, block: Block, structure: Any = None):
        self._block, self._structure = block, structure

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("by_output", "critical_path", "depth")}

    def _ready(self, algebra: Algebra) -> tuple[int, ...]:
        return tuple(self._block.ready(algebra)[: len(self._block.outputs)])

    @cached_property
    def _depths(self) -> tuple[int, ...]:
        """The depth of every output of the graph."""
        return self._ready(Algebra(self._block.longest))

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
        algebra = Itemised(self._block)
        return summed(algebra.items(max(self._ready(algebra), default=0)))
