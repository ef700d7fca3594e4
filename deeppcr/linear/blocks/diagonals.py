"""Diagonal matrices: every entry of the state is a recurrence of its own."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Self

import jax
from jax import Array

from deeppcr.linear.blocks.base import Blocks
from deeppcr.linear.blocks.matrices import Unrolled


@partial(jax.tree_util.register_dataclass, data_fields=["diagonal"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Diagonals(Blocks):
    """Diagonal matrices, ``diagonal: [chain, *batch, w]``."""

    diagonal: Array

    @property
    def width(self) -> int:
        return self.diagonal.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.diagonal.shape[1:-1]

    @property
    def coupled(self) -> int:
        return 1

    def apply(self, y: Array) -> Array:
        return self.diagonal * y

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, diagonal=self.diagonal * earlier.diagonal)

    def transpose(self) -> Self:
        return self

    def lay_out(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        """Every entry as an example of width 1."""
        rows = (1, 1, self.length, -1)
        return (
            Unrolled(self.diagonal.reshape(rows)),
            b.reshape(rows),
            lambda y: y.reshape((-1, *b.shape[1:])),
        )
