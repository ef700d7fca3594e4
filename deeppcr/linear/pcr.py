"""Parallel cyclic reduction: work O(L log L), depth O(log L).

Substituting the recurrence into itself doubles the distance d that an equation reaches back,

    y_l = A_l y_{l-d} + b_l,    y_{l-d} = A_{l-d} y_{l-2d} + b_{l-d}
    =>  y_l = (A_l A_{l-d}) y_{l-2d} + (A_l b_{l-d} + b_l),

for all l at once. After ceil(log2 L) rounds every equation reaches back beyond the start of the
chain, where the state is zero, and its ``b_l`` is the solution. No solver takes fewer rounds, and
every round is one product of long arrays. In return it does log2 L times the work.

Equations that reach beyond the start are finished. `Pairs` leaves their blocks out; `Augmented`
keeps all arrays at one shape.

Sources: Hockney & Jesshope, *Parallel Computers 2*, section 5.4.3; Danieli et al., *DeepPCR*,
NeurIPS 2023.
"""

import dataclasses
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.blocks.matrices import StructOfArrays
from deeppcr.linear.solver import LinearSolver
from deeppcr.platforms import platform


@dataclasses.dataclass(frozen=True)
class ParallelCyclicReduction(LinearSolver):
    """Parallel cyclic reduction: reduce every equation in each of ceil(log2 L) rounds.

    Work O(L log L), depth $log_2 L$, the least of all solvers.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.ParallelCyclicReduction())[-1]
        Array([2.], dtype=float32)

    References:
        R. W. Hockney, C. R. Jesshope, *Parallel Computers 2*, 1988, section 5.4.3; F. Danieli et
        al., *DeepPCR*, NeurIPS 2023, section 3.
    """

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.to_struct_of_arrays(b)
        along = Along(blocks.axis, reverse)
        equations = _equations(blocks, b, along)
        distance = 1
        while distance < along.length(b):
            equations, distance = equations.reduce(along, distance), 2 * distance
        return restore(equations.offsets)


def _equations(blocks: Blocks, b: Array, along: Along) -> "Pairs | Augmented":
    """The recurrence itself, of distance 1. The first block is ignored."""
    if isinstance(blocks, StructOfArrays):
        augmented = jnp.concatenate([along.clear_first(blocks.matrix), b], axis=1)
        return Augmented(lax.optimization_barrier(augmented))
    return Pairs(along.last(blocks, along.length(b) - 1), b)


@partial(jax.tree_util.register_dataclass, data_fields=["blocks", "offsets"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Pairs:
    """The blocks of the equations that are not finished, and the offsets of all equations."""

    blocks: Blocks | None
    offsets: Array

    def reduce(self, along: Along, distance: int) -> Self:
        """The equations of twice the ``distance``, from those of ``distance``."""
        assert self.blocks is not None
        b, unfinished = self.offsets, along.length(self.offsets) - distance
        update = self.blocks.apply(along.first(b, unfinished))
        b = along.join(along.first(b, distance), along.last(b, unfinished) + update)
        remaining = unfinished - distance
        blocks = None
        if remaining > 0:
            earlier = along.first(self.blocks, remaining)
            blocks = along.last(self.blocks, remaining).compose(earlier)
        # Without the barrier XLA forms, and keeps, the blocks of all rounds before the first b.
        return lax.optimization_barrier(dataclasses.replace(self, blocks=blocks, offsets=b))


@partial(jax.tree_util.register_dataclass, data_fields=["augmented"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Augmented:
    """Small blocks and offsets as one array ``[A b]: [w, w + 1, chain, batch]``.

    The blocks of finished equations are zero, and zeros are shifted in from beyond the start. So
    all rounds work on arrays of one shape, and XLA compiles one round or several to one kernel; a
    round of `Pairs` takes two. On a GPU, kernel launches dominate the time of narrow blocks.
    """

    augmented: Array

    @property
    def offsets(self) -> Array:
        """The ``b_l``."""
        return self.augmented[:, -1:]

    @property
    def blocks(self) -> StructOfArrays:
        """The ``A_l``."""
        return StructOfArrays(self.augmented[:, :-1])

    def reduce(self, along: Along, distance: int) -> Self:
        """As of `Pairs`."""
        earlier = along.shift(self.augmented, distance)
        if 2 * distance >= along.length(self.augmented):  # the last round
            offsets = self.offsets + self.blocks.apply(earlier[:, -1:])
            return dataclasses.replace(self, augmented=offsets)
        only_offsets = jnp.pad(self.offsets, [(0, 0), (self.blocks.width, 0), (0, 0), (0, 0)])
        augmented = only_offsets + self.blocks.apply(earlier)
        if platform() == "cpu":
            # XLA for CPU would fuse all rounds into one kernel, and recompute each round for every
            # entry of the next.
            augmented = lax.optimization_barrier(augmented)
        return dataclasses.replace(self, augmented=augmented)
