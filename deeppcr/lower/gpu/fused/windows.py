"""A kernel that solves a recurrence by Newton's method: one launch, whatever its length.

A block of threads computes an example, or some side by side, window after window; where there are
few examples, a cluster of blocks, which read each other's shared memory. A thread linearises a few
steps, and composes the affine maps that it finds. A prefix scan over the threads, first in each
warp, then over the warps and the blocks, turns them into the next states. So it goes on until the
steps reproduce the states. A window that does not get there is computed step by step.
"""

import dataclasses
from typing import NamedTuple, Self

import numpy as np

from deeppcr.lower.gpu.fused.functions import FUNCTIONS
from deeppcr.lower.gpu.fused.jacobian import linearised
from deeppcr.lower.gpu.fused.kernel import Kernel
from deeppcr.lower.gpu.fused.memory import Array, assigned, block, example_indices, index_type
from deeppcr.lower.gpu.fused.operations import CannotFuse, spelled
from deeppcr.lower.gpu.fused.solve_text import DEVICE, TEXT
from deeppcr.lower.gpu.fused.step import WARP, FusedStep

# Threads of a block, and steps of each at most, by the entries of a state: what registers and
# shared memory hold, but for 32 bytes to 1 KB of a thread for 8 entries. Not yet timed on a device.
SIZES = {1: (512, 8), 2: (512, 4), 3: (256, 4), 4: (256, 2)} | dict.fromkeys(range(5, 9), (128, 1))
SIDE, MANY = 8, 1024  # examples side by side, from so many of one entry on: a sector of memory
PROGRAM = 4096  # instructions of the steps of a thread
TRIP, FEWEST = 64, 12  # steps that a loop takes in the time of an iteration; the least budget
# Windows one after another, of 4 us each, up to which a kernel is faster than those of XLA, which
# take 30 to 130 us for an iteration (GRUs of 1 to 4 units on an H100; jax 0.11.2).
MOST_ROUNDS = 8
PROCESSORS = 128  # that work at the same time, about as many as a large GPU has
EPS = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class SolvedBelow:
    """When the states of a window are those of the sequential program.

    Attributes:
        iterations: the most in a window.
        residual: relative to the size of an entry, up to which it is rounding.
        standing: the same, for one that falls no more.
        update: the largest change of an entry, relative to its usual size, of which the next is
            rounding; infinite for a linear recurrence, whose residual alone tells.
    """

    iterations: int
    residual: float = 16 * EPS
    standing: float = 1000 * EPS
    update: float = EPS**0.5


class Grid(NamedTuple):
    """How a kernel divides its work.

    Attributes:
        side: examples side by side.
        groups: of so many examples.
        ranks: blocks that work on a group.
        threads: of a block.
        steps: of a thread, in a window.
    """

    side: int
    groups: int
    ranks: int
    threads: int
    steps: int

    @classmethod
    def of(cls, step: FusedStep, length: int, cluster: int, instructions: int = 1) -> Self:
        """That of a chain; ``instructions``: of a step and its derivative.

        Raises:
            CannotFuse: the state is too wide.
        """
        if step.width not in SIZES:
            raise CannotFuse(f"a state has {step.width} entries, of at most {max(SIZES)}")
        side = SIDE if step.width == 1 and step.count >= MANY else 1
        groups, (threads, most) = -(-step.count // side), SIZES[step.width]
        while threads > WARP and threads // side >= 2 * length:
            threads //= 2
        ranks = 1
        while 2 * ranks <= cluster and 2 * ranks * groups <= PROCESSORS:
            if ranks * threads // side >= length:
                break
            ranks *= 2
        steps = min(most, PROGRAM // max(instructions, 1), -(-length * side // (ranks * threads)))
        return cls(side, groups, ranks, threads, max(1, steps))

    @property
    def span(self) -> int:
        """The steps of a window."""
        return self.ranks * self.threads // self.side * self.steps

    def rounds(self, length: int) -> int:
        """The windows that one processor works on, one after another."""
        return -(-length // self.span) * -(-self.groups * self.ranks // PROCESSORS)


def kernel_of(
    step: FusedStep, length: int, reverse: bool, criterion: SolvedBelow, cluster: int = 1
) -> Kernel:
    """The kernel of a chain of this length, which is at least 1.

    Its results are the states of all steps, and for each example its iterations, the number of
    states before a window that was computed step by step, and the largest residual. ``reverse``:
    whether the first step is the last of the arrays. ``cluster``: the most blocks that read each
    other's shared memory.

    Raises:
        CannotFuse: there is none; the message says why.
    """
    operands = [Array.of(f"a{k}", *each) for k, each in enumerate(step.operands)]
    results = [Array.of(f"y{k}", *each) for k, each in enumerate(step.results[step.states :])]
    end, middle = step.states, step.states + step.inputs
    width = step.width
    if any(x.type.store != "{}" for x in operands[:end]):
        raise CannotFuse("a state is shorter than float32")
    entries = [f"(z)[{k}]" for k in range(width)]
    texts, rest = [], entries
    for x in operands[:end]:
        texts.append(rest[: len(x.places)])
        rest = rest[len(x.places) :]
    texts += [x.loads(True) for x in operands[end:middle]]
    texts += [x.loads(False) for x in operands[middle:]]
    code, own, values, tangents = linearised(step, texts)
    after = [f"(f)[{k}]" for k in range(width)]
    assign = assigned(after, list(map(spelled, values)))
    evaluate, linearise = code.lines[:own] + assign, code.lines + assign
    for j, column in enumerate(tangents):
        linearise += assigned([f"(J)[{i}][{j}]" for i in range(width)], list(map(spelled, column)))

    grid = Grid.of(step, length, cluster, code.instructions)
    if grid.rounds(length) > MOST_ROUNDS:
        raise CannotFuse("there are more windows than a kernel gains from")
    used = [x for x in operands if x.places]
    index = index_type(length, used + results)
    arrays, begin = [], example_indices(step, index)
    for k, x in enumerate(used + results):
        arrays.append(f"#define {x.name} (in_{x.name} + own.offset[{k}])")
        moves = [f"e{axis} * {n}" for axis, n in enumerate(x.examples) if n]
        begin.append(f"own.offset[{k}] = {' + '.join(moves) or 0};")
    pointers = [x.pointer("const ") for x in used] + [y.pointer() for y in results]
    pointers = [text.replace("__restrict__ ", "__restrict__ in_") for text in pointers]
    written, begun = iter(after), iter(entries)
    text = TEXT.substitute(
        width=width,
        **grid._asdict(),
        cluster=f"__cluster_dims__({grid.ranks}, 1, 1)" if grid.ranks > 1 else "",
        device=DEVICE,
        length=length,
        arrays="\n".join(arrays),
        evaluate=block([evaluate]),
        linearise=block([linearise]),
        write=block(y.writes([next(written) for _ in y.places], True) for y in results),
        index=index,
        offsets=len(arrays),
        pointers=", ".join([*pointers, "int* counted", "int* reached", "float* left"]),
        examples=step.count,
        begin="\n    ".join(begin),
        first="\n      ".join(
            line
            for x in operands[:end]
            for line in assigned([next(begun) for _ in x.places], x.loads(False))
        ),
        at="(LENGTH - 1 - (l))" if reverse else "(l)",
        **{
            name: spelled(np.float32(getattr(criterion, name)))
            for name in ("residual", "standing", "update")
        },
        iterations=min(criterion.iterations, max(FEWEST, grid.span // TRIP)),
    )
    return Kernel(FUNCTIONS + text, grid.groups * grid.ranks, grid.threads, grid.ranks)
