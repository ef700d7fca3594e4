"""A kernel that runs a whole recurrence: one launch, whatever its length.

A thread computes one example, or some do, side by side: see `lanes.py`. The state stays in
registers. The inputs of some steps are read while those before them are computed, because memory
answers later than a step takes. Outputs are written as they come, and the last state in the end.
Arrays are read and written as they are, whatever axes the examples are on.
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from string import Template
from typing import Any

from deeppcr.arrays import Leaves
from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.functions import FUNCTIONS
from deeppcr.lower.gpu.fused.lanes import slots
from deeppcr.lower.gpu.fused.memory import Array, arrays_of, assigned, block, entered
from deeppcr.lower.gpu.fused.nvrtc import CudaKernel, Launch
from deeppcr.lower.gpu.fused.step import FusedStep

TEXT = Template(r"""
#ifndef MEET
#define MEET __syncwarp();
#endif
$macros
#define LANES $lanes
#define common of_examples[threadIdx.x / LANES]
#define AT(l) $at
#define READ(at, x) { $read }
#define STEP(at, x) { $step }
struct state { $state };
struct inputs { $inputs };
struct __attribute__((aligned(16))) memory { $shared };
extern "C" __global__ void __launch_bounds__($threads, $resident) kernel($pointers) {
  __shared__ struct memory of_examples[$threads / LANES];
  const int lane = threadIdx.x % LANES;
  const int example = (blockIdx.x * $threads + threadIdx.x) / LANES;
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


@dataclasses.dataclass(frozen=True, repr=False)
class FusedScan:
    """A kernel that repeats a step. A trial compares it with XLA's results.

    Its results are the states of all steps, and then the last one.

    Attributes:
        step: the step.
        length: the number of steps.
        reverse: whether the first step takes the last entry of the inputs.
    """

    step: FusedStep
    length: int
    reverse: bool

    def __repr__(self) -> str:
        return "fused_scan"

    @cached_property
    def text(self) -> CudaKernel:
        """The kernel, and how it is started."""
        return kernel_of(self.step, self.length, self.reverse)

    @property
    def instructions(self) -> int:
        """Of all threads."""
        return self.length * self.step.instructions * self.step.threads

    @property
    def waits(self) -> int:
        """Latency of all steps, in operations."""
        return self.length * self.step.waits

    @property
    def in_trial(self) -> int:
        """Steps in which all of it runs: two trips of its loop, and what is left after all."""
        return 2 * self.text.ahead + self.length % self.text.ahead

    @property
    def residual(self) -> float:
        """How far a state may be from the step of the one before, of the size of its entries."""
        return 0.0

    def run(self, launch: Launch, results: Sequence[Any], operands: Sequence[Any]) -> Leaves:
        """The results, of these types, of states, inputs of all steps and captured arrays."""
        return launch(self.text, self.step.read(operands), results)


def kernel_of(step: FusedStep, length: int, reverse: bool) -> CudaKernel:
    """The kernel of a chain of this length, which is at least 1.

    ``reverse``: whether the first step is the last of the arrays.
    """
    lanes = step.divided()
    end = step.states
    middle = step.states + step.inputs
    operands, results = arrays_of(step, [*step.results, *step.results[:end]])
    index, begin, pointers = entered(step, length, operands, results)
    operands = [x.side_by_side(lanes.reads[k], lanes) for k, x in enumerate(operands)]
    results = [y.side_by_side(slots(range(len(y.places)), lanes.count), lanes) for y in results]
    states, last = operands[:end], results[len(lanes.results) :]
    inputs, captured = operands[end:middle], operands[middle:]
    read = sum(len(x.places) for x in inputs)
    at_once = limits.UNROLLED // max(step.instructions, 1)
    most = min(limits.STEPS_AHEAD, limits.ENTRIES_AHEAD // max(read, 1), at_once)
    ahead = max(1, min(most, length))
    whole = length // ahead * ahead
    prefetched = inputs if read <= limits.MAX_STEP_AHEAD else []
    reread = [x for x in captured if not any(x.examples)]
    if sum(len(x.places) for x in reread) <= limits.CAPTURED:
        reread = []

    macros, declarations = [], []
    for j, x in enumerate(captured, middle):
        if x in reread:
            macros += [f"#define r{j}_{k} {text}" for k, text in enumerate(x.loads(False))]
        else:
            declarations += x.declared(j, x.loads(False))
    statements = [x.begin(" + nothing()") for x in reread]
    for j, z in enumerate(states):
        statements += z.declared(j, z.fields("z"))
    for j, x in enumerate(inputs, end):
        statements += x.declared(j, x.fields("x") if x in prefetched else x.loads(True))
    statements += lanes.lines
    for z, entries in zip(states, lanes.results[:end], strict=True):
        statements += assigned(z.fields("z"), entries)
    for y, entries in zip(results, lanes.results, strict=False):
        statements += y.writes(entries, True)

    threads = limits.WARP if step.threads <= limits.BLOCK_IS_WARP else limits.BLOCK
    text = TEXT.substitute(
        at=f"({length - 1} - (l))" if reverse else "(l)",
        read=block(assigned(x.fields("x"), x.loads(True)) for x in prefetched),
        step=block([statements]),
        state=" ".join(map(Array.registers, states)),
        inputs=" ".join(map(Array.registers, prefetched)),
        pointers=pointers,
        macros="\n".join(macros),
        begin=block([begin, lanes.begin, declarations]),
        first=block(assigned(x.fields("z"), x.loads(False)) for x in states),
        last=block(y.writes(x.fields("z"), False) for y, x in zip(last, states, strict=True)),
        lanes=lanes.count,
        shared=" ".join(lanes.shared),
        threads=threads,
        resident=limits.RESIDENT // threads,
        examples=step.count,
        index=index,
        length=length,
        ahead=ahead,
        whole=whole,
        rest=length - whole,
    )
    return CudaKernel(FUNCTIONS + text, -(-step.threads // threads), threads, ahead=ahead)
