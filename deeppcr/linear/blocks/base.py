"""`Blocks`, the protocol of all kinds of blocks of a linear recurrence.

The recurrence ``y_l = A_l y_{l-1} + b_l`` needs three operations of its blocks: the product with a
vector (``apply``), the product of two blocks (``compose``), and the transpose. A kind of blocks
holds the blocks of all L steps and does these operations for all of them at once, so that one
solver serves every kind.

Arrays have the chain axis first, then batch axes, then the state: ``matrix: [chain, *batch, w, w]``
and vectors ``[chain, *batch, w]``. The one exception is `StructOfArrays`, a layout that solvers use
internally; its chain axis is in `axis`.

A new kind of blocks is one dataclass whose leaves all have the chain on `axis`: three operations
and three shapes. The operations also have to work on the blocks of one step, whose leaves lack the
chain axis.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array, lax

# On GPUs the default float32 product is TF32, of about three digits.
HIGHEST = lax.Precision.HIGHEST


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
    def width(self) -> int:
        """w, the number of entries of one state."""

    @property
    @abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The axes between the chain and the state."""

    @property
    @abstractmethod
    def block_size(self) -> int:
        """How many entries of a state each block couples: w if full, 1 if diagonal."""

    @abstractmethod
    def apply(self, y: Array) -> Array:
        """``A_l y_l`` for all l."""

    @abstractmethod
    def compose(self, earlier: Self) -> Self:
        """``A_l B_l`` for all l: the map that does ``earlier`` first."""

    @abstractmethod
    def transpose(self) -> Self:
        """``A_l^T`` for all l (never conjugated)."""

    def scale(self, factor: Array) -> Self:
        """``c_l A_l`` for all l, ``factor: [chain, *batch]``."""

        def scaled(leaf: Array) -> Array:
            return leaf * factor.reshape((*factor.shape, *(1,) * (leaf.ndim - factor.ndim)))

        return jax.tree.map(scaled, self)

    def apply_once(self, y: Array) -> Array:
        """`apply`, not to be differentiated: without a copy of the blocks."""
        return self.apply(y)

    def apply_sizes(self, y: Array) -> Array:
        """``|A_l| y_l`` with the magnitudes of all entries, as `apply_once`."""
        return jax.tree.map(jnp.abs, self).apply(y)

    def apply_only(self, y: Array) -> Array:
        """`apply`, not to be differentiated: with fewer kernels on a GPU."""
        return self.apply(y)

    def apply_step(self, y: Array) -> Array:
        """``A_l y_l`` for one l, in a loop; not to be differentiated.

        The leaves and ``y`` lack the chain axis.
        """
        return self.apply(y)

    def to_struct_of_arrays(self, b: Array) -> tuple["Blocks", Array, Callable[[Array], Array]]:
        """Blocks and ``b`` as a `StructOfArrays`, if that is multiplied faster, else unchanged.

        The third value is a function that takes a solution back to the layout of ``b``.
        """
        return self, b, lambda y: y

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
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))

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
