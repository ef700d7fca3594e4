"""Full matrices, and a layout in which small ones are multiplied fast.

A product of matrices and vectors can be written in three ways. On 2 CPU cores, in a loop over the steps, these
are the fastest, beside `jnp.einsum`:

    up to 2048 numbers in all       multiply and reduce      0.4 to 0.9 of the time
    more, in matrices up to 7x7     a sum over the columns   0.5 to 0.8; 0.7 to 1.2 for 2x2
    more, in wider matrices         `jnp.einsum`

Above 2048 numbers multiplying and reducing takes 5 to 10 times as long: XLA starts threads for each step. The
sum over columns is for loops alone: its derivative puts the blocks together again column by column, and takes
twice as long as that of the einsum.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.linear.blocks.base import HIGHEST, Blocks
from deeppcr.platforms import platform

SMALL = 7  # up to this width a product written as w unrolled elementwise sums beats a batched matrix product
SMALL_ON_ACCELERATORS = 16  # there a kernel takes some microseconds whatever it does, and a round of such sums is one, not two
FEW = 2048  # so many entries at most: multiplying and reducing beats all else


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Matrices(Blocks):
    """Full matrices, ``matrix: [chain, *batch, w, w]``."""

    matrix: Array

    @property
    def width(self) -> int:
        return self.matrix.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.matrix.shape[1:-2]

    @property
    def coupled(self) -> int:
        return self.width

    def apply(self, y: Array) -> Array:
        if self.matrix.size <= FEW:
            return (self.matrix * y[..., None, :]).sum(-1)
        return jnp.einsum("...ij,...j->...i", self.matrix, y, precision=HIGHEST)

    def apply_step(self, y: Array) -> Array:
        if self.matrix.size <= FEW or self.width > SMALL:
            return self.apply(y)
        product = self.matrix[..., 0] * y[..., 0, None]
        for k in range(1, self.width):
            product = product + self.matrix[..., k] * y[..., k, None]
        return product

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(
            self, matrix=jnp.matmul(self.matrix, earlier.matrix, precision=HIGHEST)
        )

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, -1, -2))

    def lay_out(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        if self.width > (SMALL if platform() == "cpu" else SMALL_ON_ACCELERATORS):
            return super().lay_out(b)
        length, width = self.length, self.width
        matrix = jnp.moveaxis(self.matrix.reshape(length, -1, width, width), (2, 3), (0, 1))
        vectors = jnp.moveaxis(b.reshape(length, -1, width, 1), (2, 3), (0, 1))
        return (
            Unrolled(matrix),
            vectors,
            lambda y: jnp.moveaxis(y, (0, 1), (2, 3)).reshape((-1, *b.shape[1:])),
        )


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Unrolled(Blocks):
    """Small matrices as a structure of arrays: ``matrix: [w, w, chain, batch]``, ``y: [w, 1, chain, batch]``.

    Every entry of a product is a sum over w elementwise products of long rows, which XLA fuses into one loop;
    a batched product of 4x4 matrices costs 3 to 5 times as much on CPU.
    """

    matrix: Array
    axis: ClassVar[int] = 2

    @property
    def width(self) -> int:
        return self.matrix.shape[0]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.matrix.shape[3:]

    @property
    def coupled(self) -> int:
        return self.width

    def apply(self, y: Array) -> Array:
        product = self.matrix[:, 0, None] * y[None, 0]
        for k in range(1, self.width):
            product = product + self.matrix[:, k, None] * y[None, k]
        return product

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(
            self, matrix=self.apply(earlier.matrix)
        )  # a matrix is a row of vectors

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, 0, 1))
