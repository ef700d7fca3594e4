"""A kernel that solves a recurrence by Newton's method: one launch, whatever its length.

A block of threads computes an example, or some side by side, window after window; where there are
few examples, a cluster of blocks, which read each other's shared memory. A thread linearises a few
steps, and composes the affine maps that it finds. A prefix scan over the threads, first in each
warp, then over the warps and the blocks, turns them into the next states. So it goes on until the
steps reproduce the states. A window that does not get there is computed step by step. Of wider
states some threads, called lanes, share a step and have a row of its Jacobian each.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.functions import FUNCTIONS
from deeppcr.lower.gpu.fused.jacobian import linearised
from deeppcr.lower.gpu.fused.lanes import Lanes
from deeppcr.lower.gpu.fused.memory import Array, arrays_of, assigned, block, entered, indexed
from deeppcr.lower.gpu.fused.nvrtc import CudaKernel
from deeppcr.lower.gpu.fused.operations import CannotFuse, spelled
from deeppcr.lower.gpu.fused.solve_text import SOLVE_TEXT
from deeppcr.lower.gpu.fused.step import FusedStep, lanes_for

EPS = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class SolvedBelow:
    """Convergence criterion of a window.

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
        lanes: threads that share a step.
        side: examples side by side.
        groups: of so many examples.
        ranks: blocks that work on a group.
        threads: of a block.
        steps: of a thread, in a window.
    """

    lanes: int
    side: int
    groups: int
    ranks: int
    threads: int
    steps: int

    @classmethod
    def of(cls, step: FusedStep, length: int, cluster: int, instructions: int = 1) -> Self:
        """That of a chain; ``instructions``: of a step and its derivative."""
        lanes = lanes_of(step)
        is_many = step.width == 1 and step.count >= limits.MANY_EXAMPLES
        side = limits.SIDE_BY_SIDE if is_many else 1
        groups = -(-step.count // side)
        threads, most = limits.WINDOWS[step.width]
        abreast = side * lanes
        while threads > limits.WARP and threads // abreast >= 2 * length:
            threads //= 2
        ranks = 1
        most_ranks = min(cluster, limits.PROCESSORS // groups)
        while 2 * ranks <= most_ranks and ranks * threads // abreast < length:
            ranks *= 2
        needed = -(-length * abreast // (ranks * threads))
        steps = min(most, limits.WINDOW_INSTRUCTIONS // max(instructions, 1), needed)
        return cls(lanes, side, groups, ranks, threads, max(1, steps))

    @property
    def span(self) -> int:
        """The steps of a window."""
        return self.ranks * self.threads // (self.lanes * self.side) * self.steps

    def rounds(self, length: int) -> int:
        """The windows that one processor works on, one after another."""
        return -(-length // self.span) * -(-self.groups * self.ranks // limits.PROCESSORS)


def lanes_of(step: FusedStep) -> int:
    """The threads that share a step."""
    return 1 if step.width <= limits.ALL_ROWS else lanes_for(step.width)


def kernel_of(
    step: FusedStep, length: int, reverse: bool, criterion: SolvedBelow, cluster: int = 1
) -> CudaKernel:
    """The kernel of a chain of this length, which is at least 1.

    Its results are the states of all steps, and for each example its iterations, the number of
    states before a window that was computed step by step, and the largest residual. ``reverse``:
    whether the first step is the last of the arrays. ``cluster``: the most blocks that read each
    other's shared memory.

    Raises:
        CannotFuse: there is none; the message says why.
    """
    operands, results = arrays_of(step, step.results)
    states, inputs = operands[: step.states], operands[step.states :]
    width = step.width
    if width not in limits.WINDOWS:
        raise CannotFuse(f"a state has {width} entries, of at most {max(limits.WINDOWS)}")
    if any(x.type.store != "{}" for x in states):
        raise CannotFuse("a state is shorter than float32")
    code, values, columns = linearised(step, lanes_of(step))
    lanes = Lanes(code, [values], 1, "evaluated")
    of_jacobian = Lanes(code, [values, *columns], 1, "linearised")

    grid = Grid.of(step, length, cluster, of_jacobian.instructions)
    index, begin, pointers = entered(step, length, operands, results)

    def statements(lanes: Lanes) -> list[str]:
        """Of a step, or of its Jacobian, too."""
        slots = range(len(lanes.reads[0]))
        lines = [f"const float r0_{r} = (z)[{r}];" for r in slots]
        for j, x in enumerate(inputs, 1):
            of_lane = x.side_by_side(lanes.reads[j], lanes)
            lines += of_lane.declared(j, of_lane.loads(j <= step.inputs))
        lines += lanes.lines + assigned(indexed("(f)", slots), lanes.results[0])
        for j, column in enumerate(lanes.results[1:]):
            lines += assigned(indexed("(J)", slots, f"[{j}]"), column)
        return lines

    text = SOLVE_TEXT.substitute(
        width=width,
        **grid._asdict(),
        cluster=f"__cluster_dims__({grid.ranks}, 1, 1)" if grid.ranks > 1 else "",
        length=length,
        evaluated=" ".join(lanes.shared),
        linearised=" ".join(of_jacobian.shared),
        evaluate=block([statements(lanes)]),
        linearise=block([statements(of_jacobian)]),
        write=block([_of_rows(results, lanes, lambda y, f: y.writes(f, True), "(f)")]),
        index=index,
        pointers=pointers,
        of_chains="int* counted, int* reached, float* left",
        examples=step.count,
        first="\n    ".join(_of_rows(states, lanes, lambda x, z: assigned(z, x.loads(False)), "z")),
        begin="\n  ".join([*begin, *lanes.begin, *of_jacobian.begin]),
        at="(LENGTH - 1 - (l))" if reverse else "(l)",
        **{
            name: spelled(np.float32(getattr(criterion, name)))
            for name in ("residual", "standing", "update")
        },
        iterations=min(
            criterion.iterations, max(limits.LEAST_BUDGET, grid.span // limits.STEPS_OF_ITERATION)
        ),
    )
    return CudaKernel(FUNCTIONS + text, grid.groups * grid.ranks, grid.threads, grid.ranks)


def _of_rows(
    arrays: Sequence[Array],
    lanes: Lanes,
    statements: Callable[[Array, list[str]], list[str]],
    name: str,
) -> list[str]:
    """Statements of arrays whose entries are rows of a vector, of which each lane has some."""
    lines = []
    end = 0
    for k, x in enumerate(arrays):
        start, end = end, end + len(x.places)
        if lanes.count == 1:
            lines += statements(x, indexed(name, range(start, end)))
        else:
            side = [min(max(lane, start), end - 1) - start for lane in range(lanes.count)]
            cases = [f"lane >= {start}"] * (start > 0) + [f"lane < {end}"] * (k + 1 < len(arrays))
            (line,) = statements(x.side_by_side([side], lanes), [f"{name}[0]"])
            lines.append(f"if ({' && '.join(cases)}) {line}" if cases else line)
    return lines
