"""Full matrices, and a layout in which small ones are multiplied fast.

A product of matrices and vectors can be written in three ways. The size decides which is fastest:

    up to 4095 numbers in all         multiply and reduce
    more, in matrices up to 7x7       a sum over the columns, in loops
    more, in wider matrices           `jnp.einsum`

On a GPU a sum over the columns is part of the kernel of what follows. A product transposes its
vectors by a kernel of its own (jax 0.10.2).
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.linear.blocks.base import HIGHEST, Blocks
from deeppcr.platforms import is_gpu, platform

# Up to this width w unrolled elementwise sums beat a batched matrix product: they take 0.5 to 0.8
# of the time in a loop, 0.7 to 1.2 for 2x2 (jax 0.10.2, 2 cores).
SMALL = 7
# On accelerators the time of a kernel hardly depends on its size, and a round of such sums is one
# kernel instead of two.
SMALL_ON_ACCELERATORS = 16
# Up to this many numbers, multiply and reduce takes 0.3 to 0.9 of the time of `jnp.einsum` (jax
# 0.10.2, 2 cores). Above, it takes up to 10 times as long: XLA starts threads for each step.
FEW = 4095


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Matrices(Blocks):
    """Full matrices.

    Attributes:
        matrix: ``[L, *batch, w, w]``, of a floating dtype. ``matrix[..., i, j]`` maps entry j of a
            state to entry i of the next.

    Example:
        >>> rotation = jnp.array([[0.0, -1.0], [1.0, 0.0]])
        >>> blocks = deeppcr.Matrices(jnp.stack([rotation] * 4))
        >>> start = jnp.array([1.0, 0.0])
        >>> deeppcr.solve_bidiagonal(blocks, jnp.zeros((4, 2)), initial=start)[-1]
        Array([1., 0.], dtype=float32)
    """

    matrix: Array

    @property
    def width(self) -> int:
        return self.matrix.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.matrix.shape[1:-2]

    @property
    def block_size(self) -> int:
        return self.width

    def apply(self, y: Array) -> Array:
        if self.matrix.size <= FEW:
            return (self.matrix * y[..., None, :]).sum(-1)
        return jnp.einsum("...ij,...j->...i", self.matrix, y, precision=HIGHEST)

    def apply_once(self, y: Array) -> Array:
        return (self.matrix * y[..., None, :]).sum(-1)

    def apply_sizes(self, y: Array) -> Array:
        return (jnp.abs(self.matrix) * y[..., None, :]).sum(-1)

    def apply_only(self, y: Array) -> Array:
        if not is_gpu() or self.width > SMALL_ON_ACCELERATORS:
            return self.apply(y)
        return _combination(jnp.moveaxis(self.matrix, -1, 0), y)

    def apply_step(self, y: Array) -> Array:
        if self.matrix.size <= FEW or self.width > SMALL:
            return self.apply(y)
        # The sum over columns is for loops alone: its derivative takes twice as long as that of the
        # einsum (jax 0.10.2, 2 cores), because it rebuilds the blocks column by column.
        return _combination([self.matrix[..., k] for k in range(self.width)], y)

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(
            self, matrix=jnp.matmul(self.matrix, earlier.matrix, precision=HIGHEST)
        )

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, -1, -2))

    def to_struct_of_arrays(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        if self.width > (SMALL if platform() == "cpu" else SMALL_ON_ACCELERATORS):
            return super().to_struct_of_arrays(b)
        length, width = self.length, self.width
        matrix = jnp.moveaxis(self.matrix.reshape(length, -1, width, width), (2, 3), (0, 1))
        vectors = jnp.moveaxis(b.reshape(length, -1, width, 1), (2, 3), (0, 1))
        return (
            StructOfArrays(matrix),
            vectors,
            lambda y: jnp.moveaxis(y, (0, 1), (2, 3)).reshape((-1, *b.shape[1:])),
        )


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class StructOfArrays(Blocks):
    """Small matrices, ``matrix: [w, w, chain, batch]``, for vectors ``[w, 1, chain, batch]``.

    Every entry of a product is a sum over w elementwise products of long rows, which XLA fuses into
    one loop.
    """

    # A batched product of 4x4 matrices takes 3 to 5 times as long on CPU (jax 0.10.2, 2 cores).

    matrix: Array
    axis: ClassVar[int] = 2

    @property
    def width(self) -> int:
        return self.matrix.shape[0]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.matrix.shape[3:]

    @property
    def block_size(self) -> int:
        return self.width

    def apply(self, y: Array) -> Array:
        product = self.matrix[:, 0, None] * y[None, 0]
        for k in range(1, self.width):
            product = product + self.matrix[:, k, None] * y[None, k]
        return product

    def compose(self, earlier: Self) -> Self:
        # A matrix is a row of vectors.
        return dataclasses.replace(self, matrix=self.apply(earlier.matrix))

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, 0, 1))


def _combination(columns: Sequence[Array] | Array, y: Array) -> Array:
    """The sum of the ``columns``, each multiplied with its entry of ``y: [.., w]``."""
    product = columns[0] * y[..., 0, None]
    for k in range(1, y.shape[-1]):
        product = product + columns[k] * y[..., k, None]
    return product
