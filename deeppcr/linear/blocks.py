"""The kinds of blocks ``A_l`` of a linear recurrence; `Blocks` says what a solver needs of them.

Matrices        full matrices                         w^2 numbers per step
BlockDiagonals  small matrices on groups of entries   w k: see `groups`
Diagonals       diagonal matrices                     w
Scalars         ``c_l I``                             1
Zeros           zero: the steps are decoupled         0

A kind of blocks holds the blocks of all L steps, and multiplies all of them at once, with vectors
or with each other. Arrays have the chain axis first, then batch axes, then the state:
``matrix: [chain, *batch, w, w]`` and vectors ``[chain, *batch, w]``. The one exception is
`StructOfArrays`, a layout that solvers use internally; its chain axis is in `axis`.

A new kind is one dataclass whose leaves all have the chain on `axis`: three operations and three
shapes. The operations also have to work on the blocks of one step, whose leaves lack the chain
axis.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.lower import HIGHEST, Use, is_written_out, matvec, spread
from depth.counts import nbytes


class Blocks(ABC):
    """The blocks $A_1, ..., A_L$ of a linear recurrence $y_l = A_l y_{l-1} + b_l$.

    Kinds: `Matrices`, `BlockDiagonals`, `Diagonals`, `Scalars`, `Zeros`. `solve_bidiagonal` takes
    them, and the ``blocks`` of a `Linearization` returns them. They are pytrees, whose leaves have
    the chain on axis 0. ``blocks.apply(y)``: $A_l y_l$ for ``y: [L, *batch, w]``. Shapes are not
    checked.
    """

    axis: ClassVar[int] = 0  # the chain axis of every leaf and of the vectors

    @property
    @abstractmethod
    def vector_shape(self) -> tuple[int, ...]:
        """``[chain, *batch, w]``, the shape of the vectors that these blocks map."""

    @abstractmethod
    def apply(self, y: Array, use: Use = "derivative") -> Array:
        """``A_l y_l`` for all l, or for one l, if the leaves and ``y`` lack the chain axis.

        ``use``: what becomes of the product. Without it the product may be differentiated.
        """

    @abstractmethod
    def compose(self, earlier: Self) -> Self:
        """``A_l B_l`` for all l: the map that does ``earlier`` first."""

    @abstractmethod
    def transpose(self) -> Self:
        """``A_l^T`` for all l (never conjugated)."""

    def to_struct_of_arrays(self, b: Array) -> tuple["Blocks", Array, Callable[[Array], Array]]:
        """Blocks and ``b`` as a `StructOfArrays`, if that is multiplied faster, else unchanged.

        The third value is a function that takes a solution back to the layout of ``b``.
        """
        return self, b, lambda y: y

    @property
    def block_size(self) -> int:
        """How many entries of a state each block couples: w if full, 1 if diagonal."""
        return self.width

    @property
    def width(self) -> int:
        """w, the number of entries of one state."""
        return self.vector_shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The axes between the chain and the state."""
        return self.vector_shape[1:-1]

    @property
    def length(self) -> int:
        """L, the number of steps."""
        return self._leaf.shape[self.axis]

    @property
    def dtype(self) -> Any:
        return self._leaf.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks of all steps."""
        return sum(map(nbytes, jax.tree.leaves(self)))

    @property
    def _leaf(self) -> Array:
        return jax.tree.leaves(self)[0]

    def astype(self, dtype: Any) -> Self:
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self)


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
    def vector_shape(self) -> tuple[int, ...]:
        return self.matrix.shape[:-1]

    def apply(self, y: Array, use: Use = "derivative") -> Array:
        return matvec(self.matrix, y, use)

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(
            self, matrix=jnp.matmul(self.matrix, earlier.matrix, precision=HIGHEST)
        )

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, -1, -2))

    def to_struct_of_arrays(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        if not is_written_out(self.width):
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
    def vector_shape(self) -> tuple[int, ...]:
        return (*self.matrix.shape[2:], self.matrix.shape[0])

    def apply(self, y: Array, use: Use = "derivative") -> Array:
        product = self.matrix[:, 0, None] * y[None, 0]
        for k in range(1, self.width):
            product = product + self.matrix[:, k, None] * y[None, k]
        return product

    def compose(self, earlier: Self) -> Self:
        # A matrix is a row of vectors.
        return dataclasses.replace(self, matrix=self.apply(earlier.matrix))

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, 0, 1))


class Elementwise(Blocks):
    """Blocks that couple no entries: their products are those of their numbers.

    Kinds without an array of the shape of the vectors have ``batch_shape`` and ``width`` as fields.
    """

    @property
    def vector_shape(self) -> tuple[int, ...]:
        return (self.length, *self.batch_shape, self.width)

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
    def vector_shape(self) -> tuple[int, ...]:
        return self.diagonal.shape

    def apply(self, y: Array, use: Use = "derivative") -> Array:
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

    def apply(self, y: Array, use: Use = "derivative") -> Array:
        return self.scalar.reshape(*self.scalar.shape, *(1,) * (y.ndim - self.scalar.ndim)) * y

    def to_struct_of_arrays(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        """As `Diagonals`, where that is faster."""
        diagonal = spread(self.scalar, b)
        if diagonal is None:
            return super().to_struct_of_arrays(b)
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

    def apply(self, y: Array, use: Use = "derivative") -> Array:
        return jnp.zeros_like(y)
