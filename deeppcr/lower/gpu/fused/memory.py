"""Arrays of a program in the memory of a GPU, as a kernel reads and writes them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.lanes import Lanes
from deeppcr.lower.gpu.fused.operations import TYPES, Type, type_of
from deeppcr.lower.gpu.fused.step import Axes, FusedStep, own_shape


class Array(NamedTuple):
    """An array in the memory of a GPU, in the order of its axes.

    Attributes:
        name: of the pointer, and of the entries of an example in registers.
        type: of its entries.
        places: of the entries of an example, in a step: numbers, or expressions of C.
        examples: the distance to the next example, for each batch axis of the state.
        size: the distance to the next step.
    """

    name: str
    type: Type
    places: Sequence[int | str]
    examples: list[int]
    size: int

    @classmethod
    def of(cls, name: str, variable: Any, axes: Axes | None) -> Self:
        """One with the examples on these axes; of one that is not used, no entries."""
        if axes is None:
            return cls(name, TYPES["bool"], [], [], 0)
        shape = variable.aval.shape
        own = tuple(map(slice, own_shape(shape, axes)))
        places = np.arange(math.prod(shape)).reshape(shape)[own].ravel().tolist()
        examples = [0 if axis is None else math.prod(shape[axis + 1 :]) for axis in axes]
        return cls(name, type_of(variable.aval.dtype), places, examples, math.prod(shape))

    def side_by_side(self, sides: Iterable[Sequence[int]], lanes: Lanes) -> Self:
        """What each of these lanes has, in place of the entries of an example."""
        places = [lanes.index([int(self.places[k]) for k in side]) for side in sides]
        return self._replace(places=places)

    def declared(self, operand: int, texts: Iterable[str]) -> list[str]:
        """Declarations of what a lane reads of this operand, by these expressions."""
        register = self.type.register
        return [f"const {register} r{operand}_{k} = {text};" for k, text in enumerate(texts)]

    def pointer(self, const: str = "") -> str:
        """Its declaration."""
        return f"{const}{self.type.memory}* __restrict__ {self.name}"

    def begin(self, const: str = "", move: str = "") -> str:
        """A statement that moves the pointer from the start of the array to an example."""
        aligned = f"__builtin_assume_aligned({self.name}{move}, {limits.ALIGNMENT})"
        moves = [f" + e{k} * {n}" for k, n in enumerate(self.examples) if n]
        return f"{self.name} = ({const}{self.type.memory}*){aligned}{''.join(moves)};"

    def registers(self) -> str:
        """The declaration of the entries of an example."""
        return f"{self.type.register} {self.name}[{len(self.places)}];"

    def kept(self, struct: str) -> list[str]:
        """These entries, in registers."""
        return [f"{struct}.{self.name}[{k}]" for k in range(len(self.places))]

    def loads(self, step: bool) -> list[str]:
        """The same, from memory: of the step ``at``, if it has steps."""
        return [self.type.load.format(place) for place in self._memory(step)]

    def writes(self, entries: Sequence[str], step: bool) -> list[str]:
        """Statements that write these entries to memory."""
        return assigned(self._memory(step), [self.type.store.format(x) for x in entries])

    def _memory(self, step: bool) -> list[str]:
        at = f"(at) * {self.size} + " if step else ""
        return [f"{self.name}[{at}{place}]" for place in self.places]


def index_type(length: int, arrays: Iterable[Array]) -> str:
    """The type in C of an index of an entry, in arrays of this many steps."""
    return "long long" if length * max(x.size for x in arrays) >= 2**31 else "int"


def example_indices(step: FusedStep, index: str) -> list[str]:
    """Declarations of the indices of an example on the batch axes, by its number."""
    sizes = [size for size in step.batch_shape if size > 1]
    return [
        f"const {index} e{k} = example / {math.prod(sizes[k + 1 :])} % {size};"
        for k, size in enumerate(sizes)
    ]


def assigned(names: Sequence[str], entries: Sequence[str]) -> list[str]:
    """Statements that assign entries to names."""
    return [f"{name} = {entry};" for name, entry in zip(names, entries, strict=True)]


def block(statements: Iterable[Sequence[str]]) -> str:
    """Lines of C that are one for a preprocessor."""
    return " \\\n  ".join(line for lines in statements for line in lines)
