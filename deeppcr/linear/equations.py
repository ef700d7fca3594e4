"""The equations of a recurrence that refer every state to one some steps earlier, and a round that doubles the distance.

    y_l = A_l y_{l-d} + b_l,    y_{l-d} = A_{l-d} y_{l-2d} + b_{l-d}
    =>  y_l = (A_l A_{l-d}) y_{l-2d} + (A_l b_{l-d} + b_l)

Equations that reach beyond the start of the chain, where the state is zero, are finished: their ``b_l`` is the solution.
"""

import dataclasses
from abc import ABC, abstractmethod
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.blocks.matrices import Unrolled
from deeppcr.platforms import platform


class Equations(ABC):
    """All equations ``y_l = A_l y_{l-d} + b_l``."""

    @abstractmethod
    def reduce(self, along: Along, distance: int) -> Self:
        """Refer to twice the distance, which now is ``distance``."""

    @property
    @abstractmethod
    def offsets(self) -> Array:
        """The ``b_l``."""


def equations(blocks: Blocks, b: Array, along: Along) -> Equations:
    """Those of the recurrence itself, whose distance is 1. The first one refers to no state, so its block is not looked at."""
    if isinstance(blocks, Unrolled):
        return Augmented(
            lax.optimization_barrier(jnp.concatenate([along.clear_first(blocks.matrix), b], axis=1))
        )
    return Pairs(along.last(blocks, along.length(b) - 1), b)


@partial(jax.tree_util.register_dataclass, data_fields=["blocks", "b"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Pairs(Equations):
    """Blocks, of the equations that are not finished alone, and offsets."""

    blocks: Blocks | None
    b: Array

    @property
    def offsets(self) -> Array:
        return self.b

    def reduce(self, along: Along, distance: int) -> Self:
        assert self.blocks is not None
        waiting = along.length(self.b) - distance
        update = self.blocks.apply(along.first(self.b, waiting))
        b = along.join(along.first(self.b, distance), along.last(self.b, waiting) + update)
        still = waiting - distance  # these wait for another round
        blocks = (
            along.last(self.blocks, still).compose(along.first(self.blocks, still))
            if still > 0
            else None
        )
        # Or else XLA forms, and keeps, all rounds of blocks before the first of b.
        return lax.optimization_barrier(dataclasses.replace(self, blocks=blocks, b=b))


@partial(jax.tree_util.register_dataclass, data_fields=["augmented"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Augmented(Equations):
    """Small blocks and offsets as one array ``[A b]: [w, w + 1, chain, batch]``.

    The blocks of finished equations are zero, and zeros are shifted in from beyond the start, so that all rounds work on arrays
    of one shape, and XLA makes a single kernel of each, or of several; of a round of pairs it makes two. On a GPU launching them
    is the time that narrow blocks take.
    """

    augmented: Array

    @property
    def offsets(self) -> Array:
        return self.augmented[:, -1:]

    def reduce(self, along: Along, distance: int) -> Self:
        blocks, earlier = Unrolled(self.augmented[:, :-1]), along.shift(self.augmented, distance)
        if 2 * distance >= along.length(
            self.augmented
        ):  # all are finished, and nobody asks for the blocks
            return dataclasses.replace(self, augmented=self.offsets + blocks.apply(earlier[:, -1:]))
        augmented = jnp.pad(
            self.offsets, [(0, 0), (blocks.width, 0), (0, 0), (0, 0)]
        ) + blocks.apply(earlier)
        if (
            platform() == "cpu"
        ):  # there XLA would make one kernel of all, and compute each round anew for every entry of the next
            augmented = lax.optimization_barrier(augmented)
        return dataclasses.replace(self, augmented=augmented)
