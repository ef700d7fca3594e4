"""No blocks at all: ``y_l = b_l``, the solution without a solver."""

import dataclasses
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.linear.blocks.base import Blocks


@partial(
    jax.tree_util.register_dataclass, data_fields=["steps"], meta_fields=["batch_shape", "width"]
)
@dataclasses.dataclass(frozen=True)
class Zeros(Blocks):
    """``A_l = 0``, for vectors ``[chain, *batch_shape, width]``; `Zeros.like` makes them.

    No step sees the one before it, not even a NaN. ``steps: [chain, 0]`` has the length and the dtype, and nothing else.
    """

    steps: Array
    batch_shape: tuple[int, ...] = ()
    width: int = 1

    @classmethod
    def like(cls, b: Array) -> Self:
        """For vectors of the shape and the dtype of ``b: [chain, *batch, w]``."""
        return cls(jnp.zeros((b.shape[0], 0), b.dtype), b.shape[1:-1], b.shape[-1])

    @property
    def coupled(self) -> int:
        return 0

    def scale(self, factor: Array) -> Self:
        return self

    def apply(self, y: Array) -> Array:
        return jnp.zeros_like(y)

    def compose(self, earlier: Self) -> Self:
        return self

    def transpose(self) -> Self:
        return self
