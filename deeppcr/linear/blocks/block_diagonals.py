"""Small matrices on groups of entries: the state falls apart into m recurrences of width k.

``A_l`` couples the entries of one group with each other and with no others. A product of blocks costs m k^3
and not w^3 = m^3 k^3. Once the entries of a group lie side by side, the groups are nothing but one more batch
axis of full k x k matrices. A parallel solver regroups the vectors once (`lay_out`). In a loop over the steps it
is better done at each step, in the cache: with m = 16 to 128 pairs and batches of 1 and 8 on 2 CPU cores,
regrouping the whole chain makes the sequential solution take 1.3 to 2.7 times as long.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.linear.blocks.base import Blocks
from deeppcr.linear.blocks.groups import Groups
from deeppcr.linear.blocks.matrices import Matrices


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=["groups"])
@dataclasses.dataclass(frozen=True)
class BlockDiagonals(Blocks):
    """Matrices on groups of entries, ``matrix: [chain, *batch, m, k, k]``.

    Attributes:
        matrix: ``matrix[..., g, i, j]`` is what entry ``groups[g, j]`` of the state contributes to entry ``groups[g, i]``.
        groups: int ``[m, k]``, every entry of the state once, -1 where a group is shorter. Whatever ``matrix`` has in the rows
            and columns of a -1 is never looked at; it may be NaN.
    """

    matrix: Array
    groups: Groups

    def __init__(
        self, matrix: Array, groups: np.ndarray | Sequence[Sequence[int]] | Groups
    ) -> None:
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "groups", Groups.of(groups))

    @property
    def width(self) -> int:
        return self.groups.width

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.matrix.shape[1:-3]

    @property
    def coupled(self) -> int:
        return self.groups.size

    def apply(self, y: Array) -> Array:
        return self.groups.merge(self._matrices.apply(self.groups.split(y)))

    def apply_step(self, y: Array) -> Array:
        return self.groups.merge(self._matrices.apply_step(self.groups.split(y)))

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, matrix=self._matrices.compose(earlier._matrices).matrix)

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, -1, -2))

    def lay_out(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        blocks, parts, restore = self._matrices.lay_out(self.groups.split(b))
        return blocks, parts, lambda y: self.groups.merge(restore(y))

    @property
    def _matrices(self) -> Matrices:
        """With zeros for padding: what is there must not meet a vector, not even times zero."""
        filled = self.groups.filled
        if filled.all():
            return Matrices(self.matrix)
        used = jnp.broadcast_to(filled[:, :, None] & filled[:, None, :], self.matrix.shape)
        return Matrices(jnp.where(used, self.matrix, jnp.zeros_like(self.matrix)))
