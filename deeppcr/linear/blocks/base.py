"""What the blocks of a linear recurrence are to a solver.

The recurrence ``y_l = A_l y_{l-1} + b_l`` needs little of its blocks: the product with a vector (``apply``),
the product of two blocks (``compose``), and the transpose. A kind of block holds the blocks of all L steps at
once and does these three for all of them side by side, so that a solver is one piece of code for every kind.

Arrays carry the chain first, then batch axes, then the state: ``matrix: [chain, *batch, w, w]``, ``diagonal:
[chain, *batch, w]``, vectors ``[chain, *batch, w]``. The one exception is `Unrolled`, a layout that solvers
use among themselves; it says so in `axis`.

A new kind of block is one dataclass whose leaves all carry the chain on `axis`: three operations and three
shapes. The operations are also asked of the blocks of one step, whose leaves lack the chain axis.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
from jax import Array, lax

HIGHEST = lax.Precision.HIGHEST  # on GPUs the default float32 product is TF32: about three digits


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

    @property
    @abstractmethod
    def coupled(self) -> int:
        """How many entries of a state mix: w if full, 1 if each is on its own. What a product of two blocks costs."""

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

    def apply_step(self, y: Array) -> Array:
        """``A_l y_l`` for one l, in a loop: leaves and ``y`` without the chain axis. Not for differentiation."""
        return self.apply(y)

    def lay_out(self, b: Array) -> tuple["Blocks", Array, Callable[[Array], Array]]:
        """Blocks and ``b`` in the layout that multiplies blocks fastest, and the way back for a solution."""
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
        """The bytes that the blocks of all steps take."""
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
