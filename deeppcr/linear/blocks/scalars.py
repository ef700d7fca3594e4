"""Multiples of the identity: a discounted sum ``y_l = c_l y_{l-1} + b_l``, a cumulative one if ``c_l = 1``.

All entries of all examples share ``c_l``, so that a product of blocks is a product of two numbers. Not even
``c = 1`` is worth a kind of its own: the sequential solver takes 1/3 to 1/8 of the time of `jnp.cumsum` on 2
CPU cores, for 1 to 2048 entries and 2000 to 10000 steps.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.linear.blocks.base import Blocks
from deeppcr.linear.blocks.diagonals import Diagonals
from deeppcr.platforms import platform


@partial(
    jax.tree_util.register_dataclass, data_fields=["scalar"], meta_fields=["batch_shape", "width"]
)
@dataclasses.dataclass(frozen=True)
class Scalars(Blocks):
    """``A_l = c_l I``, ``scalar: [chain]``, for vectors ``[chain, *batch_shape, width]``."""

    scalar: Array
    batch_shape: tuple[int, ...] = ()
    width: int = 1

    @property
    def coupled(self) -> int:
        return 1

    def scale(self, factor: Array) -> Self:
        """All examples share their number: the smallest factor."""
        return dataclasses.replace(
            self, scalar=self.scalar * factor.reshape(len(factor), -1).min(axis=1, initial=jnp.inf)
        )

    def apply(self, y: Array) -> Array:
        return self.scalar.reshape(*self.scalar.shape, *(1,) * (y.ndim - self.scalar.ndim)) * y

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, scalar=self.scalar * earlier.scalar)

    def transpose(self) -> Self:
        return self

    def lay_out(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        """On accelerators every entry with a number of its own: more numbers, and half the kernels."""
        if platform() == "cpu":
            return super().lay_out(b)
        diagonal = jnp.broadcast_to(self.scalar.reshape(-1, *(1,) * (b.ndim - 1)), b.shape)
        return Diagonals(diagonal).lay_out(b)
