"""A kernel that runs a whole recurrence: one launch, whatever its length.

A thread computes one example. The state stays in registers. The inputs of some steps are read while
those before them are computed, because memory answers later than a step takes. Outputs are written
as they come, and the last state in the end. Arrays are read and written as they are, whatever axes
the examples are on.
"""

import math
from collections.abc import Iterable, Sequence
from string import Template
from typing import Any, NamedTuple, Self

import numpy as np

from deeppcr.lower.gpu.fused.functions import FUNCTIONS
from deeppcr.lower.gpu.fused.operations import TYPES, Type, spelled, type_of
from deeppcr.lower.gpu.fused.step import WARP, Axes, FusedStep, own_shape

# Chosen by the machine code for compute capability 9.0 (CUDA 13.0), and not yet timed on a device.
AHEAD, READ = 16, 96  # steps, and entries, that are read ahead at most
KEPT = 512  # entries of a step up to which it is read ahead at all
HELD = 224  # captured entries up to which they stay in registers
UNROLLED = 2048  # instructions of the steps between two tests of the loop
BLOCK = 128  # threads, and a warp for up to so many examples, so that all processors have some
FEW = 4096
RESIDENT = 256  # threads of a processor, at most: each has as many registers as a thread can have
ALIGNED = 16  # bytes that divide where XLA puts an array


class Kernel(NamedTuple):
    """A kernel, and how it is started.

    Attributes:
        text: in CUDA C: ``kernel(*operands, *last, *outputs)``, of the operands that a step uses.
        blocks: of threads.
        threads: of a block.
    """

    text: str
    blocks: int
    threads: int


class _Array(NamedTuple):
    """An array in the memory of a GPU, in the order of its axes.

    Attributes:
        name: of the pointer, and of the entries of an example in registers.
        type: of its entries.
        places: of the entries of an example, in a step.
        examples: the distance to the next example, for each batch axis of the state.
        size: the distance to the next step.
    """

    name: str
    type: Type
    places: list[int]
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

    def pointer(self, const: str = "") -> str:
        """Its declaration."""
        return f"{const}{self.type.memory}* __restrict__ {self.name}"

    def begin(self, const: str = "", move: str = "") -> str:
        """A statement that moves the pointer from the start of the array to an example."""
        aligned = f"__builtin_assume_aligned({self.name}{move}, {ALIGNED})"
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
        return _assigned(self._memory(step), [self.type.store.format(x) for x in entries])

    def _memory(self, step: bool) -> list[str]:
        at = f"(at) * {self.size} + " if step else ""
        return [f"{self.name}[{at}{place}]" for place in self.places]


TEXT = Template(r"""
#define AT(l) $at
#define READ(at, x) { $read }
#define STEP(at, x) { $step }
struct state { $state };
struct inputs { $inputs };
extern "C" __global__ void __launch_bounds__($threads, $resident) kernel($pointers) {
  const int example = blockIdx.x * $threads + threadIdx.x;
  if (example >= $examples) return;
  $begin
  struct state z;
  $first
  struct inputs now[$ahead], next[$ahead];
#pragma unroll
  for (int k = 0; k < $ahead; k++) READ(AT(k), now[k])
  for ($index l = 0; l < $whole; l += $ahead) {
#pragma unroll
    for (int k = 0; k < $ahead; k++) {
      const $index later = l + k + $ahead < $length ? l + k + $ahead : $length - 1;
      READ(AT(later), next[k])
    }
#pragma unroll
    for (int k = 0; k < $ahead; k++) STEP(AT(l + k), now[k])
#pragma unroll
    for (int k = 0; k < $ahead; k++) now[k] = next[k];
  }
#pragma unroll
  for (int k = 0; k < $rest; k++) STEP(AT($whole + k), now[k])
  $last
}
""")


def kernel_of(step: FusedStep, length: int, reverse: bool) -> Kernel:
    """The kernel of a chain of this length, which is at least 1.

    ``reverse``: whether the first step is the last of the arrays.
    """
    operands = [_Array.of(f"a{k}", *each) for k, each in enumerate(step.operands)]
    results = [_Array.of(f"y{k}", *each) for k, each in enumerate(step.results)]
    end, middle = step.states, step.states + step.inputs
    used = [x for x in operands if x.places]
    states, last, outputs = operands[:end], results[:end], results[end:]
    inputs, captured = operands[end:middle], operands[middle:]
    read = sum(len(x.places) for x in inputs)
    most = min(AHEAD, READ // max(read, 1), UNROLLED // max(step.instructions, 1), length)
    ahead = max(most, 1)
    whole = length // ahead * ahead
    is_read = [x for x in inputs if x.places and read <= KEPT]
    again = [x for x in captured if x.places and not any(x.examples)]
    if sum(len(x.places) for x in again) <= HELD:
        again = []

    texts = [x.kept("z") for x in states]
    texts += [x.kept("x") if x in is_read else x.loads(True) for x in inputs]
    code, tables = step.code([*texts, *(x.loads(False) for x in captured)])
    entries = [list(map(spelled, table.flat)) for table in tables]
    statements = [x.begin("const ", " + nothing()") for x in again] + code.lines
    for x, after in zip(states, entries[:end], strict=True):
        statements += _assigned(x.kept("z"), after)
    for y, found in zip(outputs, entries[end:], strict=True):
        statements += y.writes(found, True)

    index = "long long" if length * max(x.size for x in used + results) >= 2**31 else "int"
    sizes = [size for size in step.batch_shape if size > 1]
    begin = [
        f"const {index} e{k} = example / {math.prod(sizes[k + 1 :])} % {size};"
        for k, size in enumerate(sizes)
    ]
    begin += [x.begin("const ") for x in used] + [y.begin() for y in results]
    threads = WARP if step.count <= FEW else BLOCK
    text = TEXT.substitute(
        at=f"({length - 1} - (l))" if reverse else "(l)",
        read=_block(_assigned(x.kept("x"), x.loads(True)) for x in is_read),
        step=_block([statements]),
        state=" ".join(x.registers() for x in states),
        inputs=" ".join(x.registers() for x in is_read),
        pointers=", ".join([*(x.pointer("const ") for x in used), *(y.pointer() for y in results)]),
        begin=_block([begin]),
        first=_block(_assigned(x.kept("z"), x.loads(False)) for x in states),
        last=_block(y.writes(x.kept("z"), False) for y, x in zip(last, states, strict=True)),
        threads=threads,
        resident=RESIDENT // threads,
        examples=step.count,
        index=index,
        length=length,
        ahead=ahead,
        whole=whole,
        rest=length - whole,
    )
    return Kernel(FUNCTIONS + text, -(-step.count // threads), threads)


def _assigned(names: Sequence[str], entries: Sequence[str]) -> list[str]:
    return [f"{name} = {entry};" for name, entry in zip(names, entries, strict=True)]


def _block(statements: Iterable[Sequence[str]]) -> str:
    """Lines of C that are one for a preprocessor."""
    return " \\\n  ".join(line for lines in statements for line in lines)
