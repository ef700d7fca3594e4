"""What the blocks of a linear recurrence can be.

The recurrence ``y_l = A_l y_{l-1} + b_l`` needs little of its blocks: the product with a vector (``apply``),
the product of two blocks (``compose``), and the transpose. A class here holds the blocks of all L steps at
once and does these three for all of them side by side, so that a solver is one piece of code for every kind
of block.

Arrays carry the chain first, then batch axes, then the state: ``matrix: [chain, *batch, w, w]``, ``diagonal:
[chain, *batch, w]``, vectors ``[chain, *batch, w]``. The one exception is `Unrolled`, a layout that solvers
use among themselves; it says so in `axis`.

A new kind of block is one dataclass whose leaves all carry the chain on `axis`: three operations and two
shapes.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array, lax

HIGHEST = lax.Precision.HIGHEST  # on GPUs the default float32 product is TF32: about three digits
SMALL = 7  # up to this width a product written as w unrolled elementwise sums beats a batched matrix product
FEW = 2048  # so many entries at most: multiplying and reducing beats a matrix product, a library call on CPU


class Blocks(ABC):
    """The blocks ``A_1 .. A_L`` of a linear recurrence."""

    axis: ClassVar[int] = 0  # where the chain runs, in every leaf and in the vectors

    @property
    @abstractmethod
    def width(self) -> int:
        """w, the number of entries of one state."""

    @property
    @abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The axes between the chain and the state."""

    @abstractmethod
    def apply(self, y: Array) -> Array:
        """``A_l y_l`` for all l."""

    @abstractmethod
    def compose(self, earlier: Self) -> Self:
        """``A_l B_l`` for all l: the map that does ``earlier`` first."""

    @abstractmethod
    def transpose(self) -> Self:
        """``A_l^T`` for all l (never conjugated)."""

    def lay_out(self, b: Array) -> tuple["Blocks", Array, Callable[[Array], Array]]:
        """Blocks and ``b`` in the layout that computes fastest, and the way back for a solution."""
        return self, b, lambda y: y

    @property
    def length(self) -> int:
        """L, the number of steps."""
        return self._leaf.shape[self.axis]

    @property
    def dtype(self) -> Any:
        return self._leaf.dtype

    @property
    def vector_shape(self) -> tuple[int, ...]:
        """``[chain, *batch, w]``, the shape of the vectors that these blocks map."""
        return (self.length, *self.batch_shape, self.width)

    @property
    def _leaf(self) -> Array:
        leaf: Array = jax.tree.leaves(self)[0]
        return leaf

    def astype(self, dtype: Any) -> Self:
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self)


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

    def apply(self, y: Array) -> Array:
        if self.matrix.size <= FEW:
            return (self.matrix * y[..., None, :]).sum(-1)
        return jnp.einsum("...ij,...j->...i", self.matrix, y, precision=HIGHEST)

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, matrix=jnp.matmul(self.matrix, earlier.matrix, precision=HIGHEST))

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, -1, -2))

    def lay_out(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        if self.width > SMALL:
            return super().lay_out(b)
        length, width = self.length, self.width
        matrix = jnp.moveaxis(self.matrix.reshape(length, -1, width, width), (2, 3), (0, 1))
        vectors = jnp.moveaxis(b.reshape(length, -1, width, 1), (2, 3), (0, 1))
        return Unrolled(matrix), vectors, lambda y: jnp.moveaxis(y, (0, 1), (2, 3)).reshape(b.shape)


@partial(jax.tree_util.register_dataclass, data_fields=["diagonal"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Diagonals(Blocks):
    """Diagonals matrices, ``diagonal: [chain, *batch, w]``."""

    diagonal: Array

    @property
    def width(self) -> int:
        return self.diagonal.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.diagonal.shape[1:-1]

    def apply(self, y: Array) -> Array:
        return self.diagonal * y

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, diagonal=self.diagonal * earlier.diagonal)

    def transpose(self) -> Self:
        return self


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

    def apply(self, y: Array) -> Array:
        product = self.matrix[:, 0, None] * y[None, 0]
        for k in range(1, self.width):
            product = product + self.matrix[:, k, None] * y[None, k]
        return product

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, matrix=self.apply(earlier.matrix))  # a matrix is a row of vectors

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, 0, 1))
