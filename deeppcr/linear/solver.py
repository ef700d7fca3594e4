"""`LinearSolver`, the protocol of all solvers, and `Recurrence`, the sequential one.

``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0`` is the block bidiagonal system ``M y = b``, where M has
the identity on its diagonal and ``-A_l`` below it. The transposed system ``M^T lam = g`` runs
backwards: ``lam_L = g_L``, ``lam_l = g_l + A_{l+1}^T lam_{l+1}``. In this form the blocks have to
be shifted by one step, which copies all of them. With ``mu_l = A_l^T lam_l`` it becomes

    mu_l = A_l^T mu_{l+1} + A_l^T g_l,    lam_l = g_l + mu_{l+1},

the same recurrence backwards, in which only vectors are shifted. A solver is the same algorithm in
both directions, with the ends of the chain swapped (`Along`). Arrays stay in memory order, because
reversing them would copy every block.

A parallel solver multiplies blocks, and a product of blocks may overflow or lose digits where no
state does. So its solution is judged, corrected and completed: see `deeppcr.linear.judged`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays import float32_or_better
from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.linear.blocks import Blocks, Zeros
from deeppcr.linear.judged import System, solve_judged
from deeppcr.loops import unless

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


Solve = Callable[[Blocks, Array, bool], Array]


class LinearSolver(ABC):
    """A solver of the linear recurrence: frozen, hashable, stateless.

    ``b: [chain, *batch, w]``. The block of the first step (the last one if ``reverse``) is ignored.
    bfloat16 and float16 are computed in float32. Required and not checked: ``b`` has the
    ``vector_shape`` and the dtype of the blocks.

    A subclass defines `_solve`, which receives at least two steps and no `Zeros`.
    """

    def solve(self, blocks: Blocks, b: Array, reverse: bool = False) -> Array:
        """``y_l = A_l y_{l-1} + b_l``, ``y_0 = 0``; ``reverse``: ``y_l = A_l y_{l+1} + b_l``."""
        return self._in_float32(self._judged, blocks, b, reverse)

    def solve_transposed(self, blocks: Blocks, g: Array, reverse: bool = False) -> Array:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}``, ``lam_{L+1} = 0``: `solve` transposed."""
        return self._in_float32(partial(self._judged, transposed=True), blocks, g, reverse)

    def solve_unguarded(
        self, blocks: Blocks, b: Array, reverse: bool = False, transposed: bool = False
    ) -> Array:
        """`solve`, or `solve_transposed`, not judged: for what checks its result itself."""
        solve = self._solve_transposed if transposed else self._solve
        return self._in_float32(solve, blocks, b, reverse)

    def resolve(self, length: int, blocks: Callable[[], Blocks]) -> "LinearSolver":
        """The solver that runs for ``length`` blocks: this one, unless it is "auto".

        ``blocks``: makes them, or what has their shapes.
        """
        return self

    def multiplies(self, blocks: Blocks) -> bool:
        """Whether it multiplies these blocks with each other: then its solution is judged."""
        return True

    def is_decoupled(self, blocks: Blocks, b: Array) -> bool:
        """Whether no step depends on another, so that ``b`` is the solution."""
        return b.size == 0 or blocks.length == 1 or isinstance(blocks, Zeros)

    @abstractmethod
    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """`solve_unguarded` for at least two steps, in float32 or better."""

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        """The transpose of `_solve`."""
        transposed = blocks.transpose()
        mu = self._solve(transposed, transposed.apply(g), not reverse)
        return g + self._towards(not reverse).before(jnp.zeros_like(mu[0]), mu)

    def _towards(self, reverse: bool) -> ChainAxis:
        """The chain axis of its arguments, in the direction of the recurrence."""
        return LOCAL.reversed if reverse else LOCAL

    def _in_float32(self, solve: Solve, blocks: Blocks, b: Array, reverse: bool) -> Array:
        """``solve`` in float32 or better, unless the recurrence is decoupled."""
        if self.is_decoupled(blocks, b):
            return b
        working = float32_or_better(b.dtype)
        return solve(blocks.astype(working), b.astype(working), reverse).astype(b.dtype)

    def _judged(self, blocks: Blocks, b: Array, reverse: bool, transposed: bool = False) -> Array:
        """The solution, judged by its residual if blocks were multiplied for it."""
        solve = self._solve_transposed if transposed else self._solve
        if not self.multiplies(blocks):
            return solve(blocks, b, reverse)

        def operator(blocks: Blocks) -> Blocks:
            return blocks.transpose() if transposed else blocks

        def product(index: Array, y: Array) -> Array:
            return operator(Along().step(blocks, index)).apply(y, "step")

        def products(blocks: Blocks, y: Array) -> Array:
            return operator(blocks).apply(y, "residual")

        def magnitudes(blocks: Blocks, y: Array) -> Array:
            return jax.tree.map(jnp.abs, operator(blocks)).apply(y, "residual")

        system = System(b, self._towards(reverse != transposed), transposed)
        by_blocks = partial(solve, reverse=reverse)
        y, prefix = solve_judged(system, blocks, by_blocks, products, magnitudes)
        return unless(prefix == system.total, y, partial(system.complete, product, y, prefix))


@dataclasses.dataclass(frozen=True)
class Recurrence(LinearSolver):
    """The sequential solver: a loop over the steps.

    Work O(L), depth L, no block products, so its result is finite wherever the states are. The
    fastest solver on CPUs.

    Attributes:
        unroll: integer >= 1, steps per trip of the loop; None: chosen by the size of a step.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.Recurrence())[-1]
        Array([2.], dtype=float32)
    """

    unroll: int | None = None

    def multiplies(self, blocks: Blocks) -> bool:
        return False

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        axis = blocks.axis
        steps, b = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), (blocks, b))
        along = Along(reverse=reverse)

        # The loop indexes the steps and writes the states into one buffer, which starts as b. A
        # scan over all but the first step would have to slice the blocks and b, and to join the
        # result: three copies, up to half of the time (jax 0.10.2).
        def step(count: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            y, trajectory = carry
            index = len(b) - 1 - count if reverse else count
            block, b_l = along.step((steps, b), index)
            y = block.apply(y, "step") + b_l
            return y, lax.dynamic_update_index_in_dim(trajectory, y, index, 0)

        unroll = self.unroll or _unroll(steps, b)
        first = along.first(b, 1)[0]
        _, trajectory = lax.fori_loop(1, len(b), step, (first, b), unroll=unroll)
        return jnp.moveaxis(trajectory, 0, axis)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        # The carry is mu, so that no block is shifted by a step.
        def step(mu: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
            block, g_l = inputs
            lam = g_l + mu
            return block.transpose().apply(lam, "step"), lam

        unroll = self.unroll or _unroll(blocks, g)
        mu = jnp.zeros_like(g[0])
        return lax.scan(step, mu, (blocks, g), reverse=not reverse, unroll=unroll)[1]


def _unroll(blocks: Blocks, b: Array) -> int:
    """Steps per trip of the loop."""
    # Factors of the time of a step (jax 0.10.2, 2 cores). Blocks of 1x1 to 4x4: 0.5 to 0.6 with
    # four steps per trip. A transposed step of 4x4: 0.8 with two, 1.9 with four; of 8x8: more than
    # 2 with two. In batches of 8, from 2x2 on, one step per trip is the fastest or nearly so.
    entries = max(b.size, sum(leaf.size for leaf in jax.tree.leaves(blocks))) // len(b)
    if entries <= 4:
        return 4
    return 2 if entries <= 16 else 1
