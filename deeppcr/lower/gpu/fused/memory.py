"""Arrays of a program in the memory of a GPU, as a kernel reads and writes them."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.entries import Axes, example_shape
from deeppcr.lower.gpu.fused.lanes import Lanes
from deeppcr.lower.gpu.fused.operations import Type, type_of
from deeppcr.lower.gpu.fused.step import FusedStep


class Array(NamedTuple):
    """An array in the memory of a GPU, in the order of its axes.

    Attributes:
        name: of the pointer, and of the entries of an example in registers.
        type: of its entries.
        places: of the entries of an example, in a step: numbers, or expressions of C.
        examples: the distance to the next example, for each batch axis of the state.
        size: the distance to the next step.
        const: whether a kernel only reads it, as C says so.
    """

    name: str
    type: Type
    places: Sequence[int | str]
    examples: list[int]
    size: int
    const: str

    @classmethod
    def of(cls, name: str, variable: Any, axes: Axes, const: str = "") -> Self:
        """One with the examples on these axes."""
        shape = variable.aval.shape
        size = math.prod(shape)
        first = tuple(map(slice, example_shape(shape, axes)))
        places = np.arange(size).reshape(shape)[first].ravel().tolist()
        examples = [0 if axis is None else math.prod(shape[axis + 1 :]) for axis in axes]
        return cls(name, type_of(variable.aval.dtype), places, examples, size, const)

    def side_by_side(self, sides: Iterable[Sequence[int]], lanes: Lanes) -> Self:
        """What each of these lanes has, in place of the entries of an example."""
        numbers = np.array(self.places, int)
        return self._replace(places=[lanes.index(numbers[list(side)].tolist()) for side in sides])

    def declared(self, operand: int, texts: Iterable[str]) -> list[str]:
        """Declarations of what a lane reads of this operand, by these expressions."""
        register = self.type.register
        return [f"const {register} r{operand}_{k} = {text};" for k, text in enumerate(texts)]

    def pointer(self) -> str:
        """Its declaration."""
        return f"{self.const}{self.type.memory}* __restrict__ {self.name}"

    def begin(self, move: str = "") -> str:
        """A statement that moves the pointer from the start of the array to an example."""
        aligned = f"__builtin_assume_aligned({self.name}{move}, {limits.ALIGNMENT})"
        moves = [f" + e{k} * {n}" for k, n in enumerate(self.examples) if n]
        return f"{self.name} = ({self.const}{self.type.memory}*){aligned}{''.join(moves)};"

    def registers(self) -> str:
        """The declaration of the entries of an example."""
        return f"{self.type.register} {self.name}[{len(self.places)}];"

    def fields(self, struct: str) -> list[str]:
        """These entries, in registers."""
        return indexed(f"{struct}.{self.name}", range(len(self.places)))

    def loads(self, step: bool) -> list[str]:
        """The same, from memory: of the step ``at``, if it has steps."""
        return list(map(self.type.load.format, self._memory(step)))

    def writes(self, entries: Sequence[str], step: bool) -> list[str]:
        """Statements that write these entries to memory."""
        return assigned(self._memory(step), list(map(self.type.store.format, entries)))

    def _memory(self, step: bool) -> list[str]:
        at = f"(at) * {self.size} + " if step else ""
        return [f"{self.name}[{at}{place}]" for place in self.places]


def arrays_of(
    step: FusedStep, results: Sequence[tuple[Any, Axes]]
) -> tuple[list[Array], list[Array]]:
    """Those that a step reads, and those of results of it."""
    operands = [Array.of(f"a{k}", x, axes, "const ") for k, (x, axes) in enumerate(step.operands)]
    return operands, [Array.of(f"y{k}", y, axes) for k, (y, axes) in enumerate(results)]


def entered(
    step: FusedStep, length: int, operands: Sequence[Array], results: Sequence[Array]
) -> tuple[str, list[str], str]:
    """How a kernel of these arrays begins.

    Returns:
        the type in C of an index of an entry, in arrays of this many steps; statements that move
        pointers to an example, by its number; and the declarations of these.
    """
    arrays = [*operands, *results]
    index = "long long" if length * max(x.size for x in arrays) >= 2**31 else "int"
    sizes = [size for size in step.batch_shape if size > 1]
    indices = [
        f"const {index} e{k} = example / {math.prod(sizes[k + 1 :])} % {size};"
        for k, size in enumerate(sizes)
    ]
    return index, [*indices, *map(Array.begin, arrays)], ", ".join(map(Array.pointer, arrays))


def indexed(name: str, indices: Iterable[int], column: str = "") -> list[str]:
    """Entries of an array of C; ``column``: a further index of all of them."""
    return [f"{name}[{k}]{column}" for k in indices]


def assigned(names: Sequence[str], entries: Sequence[str]) -> list[str]:
    """Statements that assign entries to names."""
    return [f"{name} = {entry};" for name, entry in zip(names, entries, strict=True)]


def block(statements: Iterable[Sequence[str]]) -> str:
    """Lines of C that are one for a preprocessor."""
    return " \\\n  ".join(chain.from_iterable(statements))
