"""Blocks without products of matrices: diagonal ones, multiples of the identity, and zero."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.linear.blocks.base import Blocks
from deeppcr.linear.blocks.matrices import StructOfArrays
from deeppcr.platforms import platform


class Elementwise(Blocks):
    """Blocks that couple no entries: their products are those of their numbers."""

    @property
    def block_size(self) -> int:
        return 1

    def compose(self, earlier: Self) -> Self:
        return jax.tree.map(jnp.multiply, self, earlier)

    def transpose(self) -> Self:
        return self


@partial(jax.tree_util.register_dataclass, data_fields=["diagonal"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Diagonals(Elementwise):
    """Diagonal matrices: a recurrence for each entry.

    Attributes:
        diagonal: ``[L, *batch, w]``, of a floating dtype.

    Example:
        >>> blocks = deeppcr.Diagonals(jnp.array([[0.0, 0.0], [0.5, 2.0]]))
        >>> deeppcr.solve_bidiagonal(blocks, jnp.ones((2, 2)))
        Array([[1. , 1. ],
               [1.5, 3. ]], dtype=float32)
    """

    diagonal: Array

    @property
    def width(self) -> int:
        return self.diagonal.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.diagonal.shape[1:-1]

    def apply(self, y: Array) -> Array:
        return self.diagonal * y

    def to_struct_of_arrays(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        """Every entry becomes a batch element of width 1."""
        rows = (1, 1, self.length, -1)
        return (
            StructOfArrays(self.diagonal.reshape(rows)),
            b.reshape(rows),
            lambda y: y.reshape((-1, *b.shape[1:])),
        )


@partial(
    jax.tree_util.register_dataclass, data_fields=["scalar"], meta_fields=["batch_shape", "width"]
)
@dataclasses.dataclass(frozen=True)
class Scalars(Elementwise):
    """Multiples of the identity, $A_l = c_l I$: a discounted sum, cumulative if $c_l = 1$.

    The whole batch shares $c_l$, so a product of blocks is a product of two numbers.

    Attributes:
        scalar: c, ``[L]``, of a floating dtype.
        batch_shape: of the vectors ``[L, *batch_shape, width]``, a tuple of integers.
        width: w, an integer.

    Example:
        >>> blocks = deeppcr.Scalars(jnp.ones(3), (), 2)
        >>> deeppcr.solve_bidiagonal(blocks, jnp.ones((3, 2)))[:, 0]
        Array([1., 2., 3.], dtype=float32)
    """

    # c = 1 needs no kind of its own: the sequential solver takes 1/3 to 1/8 of the time of
    # `jnp.cumsum`, for 1 to 2048 entries and 2000 to 10000 steps (jax 0.10.2, 2 cores).
    scalar: Array
    batch_shape: tuple[int, ...] = ()
    width: int = 1

    def scale(self, factor: Array) -> Self:
        """The whole batch shares one number per step: the smallest factor."""
        return dataclasses.replace(
            self, scalar=self.scalar * factor.reshape(len(factor), -1).min(axis=1, initial=jnp.inf)
        )

    def apply(self, y: Array) -> Array:
        return self.scalar.reshape(*self.scalar.shape, *(1,) * (y.ndim - self.scalar.ndim)) * y

    def to_struct_of_arrays(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        """On accelerators as `Diagonals`: more numbers, but half as many kernels."""
        if platform() == "cpu":
            return super().to_struct_of_arrays(b)
        diagonal = jnp.broadcast_to(self.scalar.reshape(-1, *(1,) * (b.ndim - 1)), b.shape)
        return Diagonals(diagonal).to_struct_of_arrays(b)


@partial(
    jax.tree_util.register_dataclass, data_fields=["steps"], meta_fields=["batch_shape", "width"]
)
@dataclasses.dataclass(frozen=True)
class Zeros(Elementwise):
    """$A_l = 0$: no step depends on the one before it, and not even a NaN is passed on.

    ``Zeros.like(b)`` makes them for vectors ``b: [L, *batch, w]``.

    Attributes:
        steps: ``[L, 0]``, which holds only the length and the dtype.
        batch_shape: of the vectors ``[L, *batch_shape, width]``, a tuple of integers.
        width: w, an integer.

    Example:
        >>> b = jnp.ones((3, 2))
        >>> bool((deeppcr.solve_bidiagonal(deeppcr.Zeros.like(b), b) == b).all())
        True
    """

    steps: Array
    batch_shape: tuple[int, ...] = ()
    width: int = 1

    @classmethod
    def like(cls, b: Array) -> Self:
        """For vectors of the shape and the dtype of ``b: [chain, *batch, w]``."""
        return cls(jnp.zeros((b.shape[0], 0), b.dtype), b.shape[1:-1], b.shape[-1])

    @property
    def block_size(self) -> int:
        return 0

    def scale(self, factor: Array) -> Self:
        return self

    def apply(self, y: Array) -> Array:
        return jnp.zeros_like(y)
