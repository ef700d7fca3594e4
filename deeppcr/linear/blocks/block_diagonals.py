"""Small matrices on groups of entries: the state decouples into m recurrences of width k.

``A_l`` couples the entries of one group with each other and with no others. A product of blocks
costs m k^3 instead of w^3 = m^3 k^3. Once the entries of a group are neighbours, the groups are one
more batch axis of full k x k matrices. A parallel solver regroups the vectors of all steps at once.
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
    """Small matrices on groups of entries, which do not influence each other.

    Attributes:
        matrix: ``[L, *batch, m, k, k]``, of a floating dtype. ``matrix[..., g, i, j]`` maps entry
            ``groups[g, j]`` of a state to entry ``groups[g, i]`` of the next.
        groups: integers ``[m, k]``, every entry of the state once, -1 where a group is shorter. The
            rows and columns of ``matrix`` at a -1 are ignored; they may be NaN.

    Raises:
        ValueError: ``groups`` are no integers ``[m, k]``, or an entry is missing or repeated.

    Example:
        >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        >>> blocks = deeppcr.BlockDiagonals(jnp.tile(swap, (3, 2, 1, 1)), [[0, 2], [1, 3]])
        >>> start = jnp.arange(4.0)
        >>> deeppcr.solve_bidiagonal(blocks, jnp.zeros((3, 4)), initial=start)[0]
        Array([2., 3., 0., 1.], dtype=float32)
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
    def block_size(self) -> int:
        return self.groups.size

    def apply(self, y: Array) -> Array:
        return self.groups.merge(self._matrices.apply(self.groups.split(y)))

    def apply_step(self, y: Array) -> Array:
        # Regrouping each step, in the cache, beats regrouping the whole chain beforehand, which
        # takes 1.3 to 2.7 times as long (jax 0.10.2, 2 cores, 16 to 128 pairs, batch 1 and 8).
        return self.groups.merge(self._matrices.apply_step(self.groups.split(y)))

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, matrix=self._matrices.compose(earlier._matrices).matrix)

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, -1, -2))

    def to_struct_of_arrays(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        blocks, vectors, restore = self._matrices.to_struct_of_arrays(self.groups.split(b))
        return blocks, vectors, lambda y: self.groups.merge(restore(y))

    @property
    def _matrices(self) -> Matrices:
        """The groups as a batch axis, with zeros for padding, since 0 * NaN is NaN."""
        filled = self.groups.filled
        if filled.all():
            return Matrices(self.matrix)
        used = jnp.broadcast_to(filled[:, :, None] & filled[:, None, :], self.matrix.shape)
        return Matrices(jnp.where(used, self.matrix, jnp.zeros_like(self.matrix)))
