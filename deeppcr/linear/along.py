"""Slicing and joining along the chain, on any axis and in either direction.

A recurrence that runs backwards is the same algorithm with the ends of the chain swapped. Arrays
stay in memory order, because reversing them would copy every block.
"""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

# An array, or blocks: any pytree whose arrays all have the chain on the same axis.
Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Along:
    """The chain is on ``axis``. It starts at index 0, or at the last index if ``reverse``."""

    axis: int = 0
    reverse: bool = False

    def length(self, tree: Tree) -> int:
        """The number of steps in ``tree``."""
        leaf: Array = jax.tree.leaves(tree)[0]
        return leaf.shape[self.axis]

    def first(self, tree: Tree, count: int) -> Tree:
        """The first ``count`` steps of the chain."""
        length = self.length(tree)
        start = length - count if self.reverse else 0
        return self._slice(tree, start, start + count, 1)

    def last(self, tree: Tree, count: int) -> Tree:
        """The last ``count`` steps of the chain."""
        return dataclasses.replace(self, reverse=not self.reverse).first(tree, count)

    def halves(self, tree: Tree) -> tuple[Tree, Tree]:
        """Steps 0, 2, 4, .. and steps 1, 3, 5, .., counted from the start of the chain."""
        length = self.length(tree)
        even, odd = ((length - 1) % 2, length % 2) if self.reverse else (0, 1)
        return self._slice(tree, even, length, 2), self._slice(tree, odd, length, 2)

    def join(self, earlier: Array, later: Array) -> Array:
        """One chain from its first and its last steps."""
        return lax.concatenate([later, earlier] if self.reverse else [earlier, later], self.axis)

    def interleave(self, even: Array, odd: Array) -> Array:
        """One chain from its `halves`."""
        length = self.length(even) + self.length(odd)
        if length % 2:
            odd = self.join(odd, jnp.zeros_like(self.first(even, 1)))
        pair = [odd, even] if self.reverse else [even, odd]
        shape = (*even.shape[: self.axis], 2 * self.length(even), *even.shape[self.axis + 1 :])
        return self.first(jnp.stack(pair, self.axis + 1).reshape(shape), length)

    def shift(self, tree: Tree, distance: int) -> Tree:
        """For each step, the entry ``distance`` steps before it; zero before the first step."""
        return self._pad(tree, distance, -distance)

    def padded(self, tree: Tree, count: int) -> Tree:
        """With ``count`` zeros after the last step, on which no step depends."""
        return self._pad(tree, 0, count) if count else tree

    def clear_first(self, y: Array) -> Array:
        """``y`` with zeros at the first step, even where the product with its block is NaN."""
        index = lax.broadcasted_iota(jnp.int32, y.shape, self.axis)
        is_first = index >= self.length(y) - 1 if self.reverse else index < 1
        return jnp.where(is_first, jnp.zeros_like(y), y)

    def step(self, tree: Tree, index: int | Array) -> Tree:
        """One step, without the chain axis; ``index`` counts in memory order."""
        return jax.tree.map(
            lambda leaf: lax.dynamic_index_in_dim(leaf, index, self.axis, keepdims=False), tree
        )

    def _slice(self, tree: Tree, start: int, stop: int, stride: int) -> Tree:
        return jax.tree.map(
            lambda leaf: lax.slice_in_dim(leaf, start, stop, stride, self.axis), tree
        )

    def _pad(self, tree: Tree, before: int, after: int) -> Tree:
        edges = (after, before, 0) if self.reverse else (before, after, 0)

        def padded(leaf: Array) -> Array:
            padding = [(0, 0, 0)] * leaf.ndim
            padding[self.axis] = edges
            return lax.pad(leaf, jnp.zeros((), leaf.dtype), padding)

        return jax.tree.map(padded, tree)
