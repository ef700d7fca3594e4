"""Parallel cyclic reduction: work O(L log L), depth O(log L).

Substituting the recurrence into itself doubles the distance that an equation reaches over,

    y_l = A_l y_{l-d} + b_l,    y_{l-d} = A_{l-d} y_{l-2d} + b_{l-d}
    =>  y_l = (A_l A_{l-d}) y_{l-2d} + (A_l b_{l-d} + b_l),

and all l can do so at once. After ceil(log2 L) rounds every equation reaches beyond the start of the chain,
where the state is zero, and ``b`` is the solution. The fewest rounds of all solvers, and every round is one
product of long arrays; it pays with log2 L times the work.

Equations that have reached the start are finished: see `deeppcr.linear.equations`.

Sources: Hockney & Jesshope, *Parallel Computers 2*, section 5.4.3; Danieli et al., *DeepPCR*, NeurIPS 2023.
"""

import dataclasses

from jax import Array

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.equations import equations
from deeppcr.linear.solver import LinearSolver


@dataclasses.dataclass(frozen=True)
class ParallelCyclicReduction(LinearSolver):
    """Every equation reduced in every one of ceil(log2 L) rounds."""

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.lay_out(b)
        along = Along(blocks.axis, reverse)
        length, distance, now = along.length(b), 1, equations(blocks, b, along)
        while distance < length:
            now = now.reduce(along, distance)
            distance *= 2
        return restore(now.offsets)
