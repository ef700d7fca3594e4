"""Check parallel solutions by their residual; recompute rejected steps sequentially.

A parallel solver multiplies blocks with each other. A product of blocks may overflow although every
state is finite, as for ``A_l = 30`` and states that stay 0, and it may lose all digits, as for
nonnormal blocks, whose products are far larger than their effect on the states. The sequential
program rounds what it adds in each step, and nothing else. So a solution is as good as its own if
the residual of every step,

    r_l = b_l + A_l y_{l-1} - y_l,

is at most a few units of what is added. If the sequential program multiplies with blocks, that is
``|b_l| + |A_l| |y_{l-1}|``. If it applies a step, it is ``|b_l| + |A_l y_{l-1}|``, and the rounding
of ``A_l y_{l-1}`` counts as a residual: where its terms cancel, the step may be far more accurate
than its block.

Otherwise the solution is corrected by ``y <- y + (I - A)^{-1} r`` as long as the residual falls.
What is still wrong then, the caller computes step by step.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.state import Leaves
from deeppcr.axis import ChainAxis
from deeppcr.linear.blocks import Blocks
from deeppcr.loops import CORRECTION, FALLBACK, fallback, iterate, steps_from

UNITS = 16  # in the last place, up to which a residual is rounding
FALLS = 4  # the factor by which a correction has to reduce the largest residual

Leaving = tuple[Array, Array]
"""What the last step passes on, and the solution ``[L, *batch, w]``."""


@dataclasses.dataclass(frozen=True)
class System:
    """``y_l = b_l + A_l y_{l-1}``, or its transpose ``y_l = b_l + A_{l+1}^T y_{l+1}``.

    A step passes on ``y_l``, of the transpose ``A_l^T y_l``. The block of the first step of the
    chain is ignored; of the transpose that is the last step.

    Attributes:
        b: ``[L, *batch, w]``.
        axis: the chain axis, in the direction of the recurrence.
        transposed: whether a block belongs to the step that passes on, not to that which receives.
        is_left: whether the value passed on by the last step is used.
    """

    b: Array
    axis: ChainAxis
    transposed: bool = False
    is_left: bool = False

    @property
    def total(self) -> int:
        """The number of steps in all shards."""
        return self.axis.total(len(self.b))

    def coupled(self, products: Callable[[Array], Array], y: Array) -> tuple[Array, Array]:
        """What each step receives, and what it passes on; ``products`` has those of all steps."""
        nothing = jnp.zeros_like(y[0])
        if self.transposed:
            passed = products(y)
            return self.axis.before(nothing, passed), passed
        received = products(self.axis.before(nothing, y))
        is_first = self.axis.indices(y.shape) == 0
        return jnp.where(is_first, jnp.zeros_like(y), received), y

    def last(self, passed: Array) -> Array:
        """The entry of the last step of this shard."""
        return passed[0 if self.axis.backwards else -1]

    def complete(
        self,
        product: Callable[[Array, Array], Array],
        prefix: Array,
        y: Array,
        expected: bool = False,
    ) -> Leaving:
        """All steps after the first ``prefix``, one after another.

        Args:
            product: ``(l, v) -> A_l v``, or ``A_l^T v``; l counts from 0 in memory order.
            prefix: int32.
            y: ``[L, *batch, w]``, right up to there.
            expected: see `fallback`.
        """
        axis, length = self.axis, len(self.b)

        def shard(entry: Array, y: Array) -> Leaving:
            begin = jnp.clip(prefix - axis.rank * length, 0, length).astype(jnp.int32)

            def step(index: Array, passed: Array) -> tuple[Array, Leaves]:
                place = length - 1 - index if axis.backwards else index
                y_l, b_l = (lax.dynamic_index_in_dim(x, place, keepdims=False) for x in (y, self.b))
                received = passed if self.transposed else product(place, passed)
                is_first = (index == 0) & (axis.rank == 0)
                new = jnp.where(is_first, b_l, b_l + received)
                new = jnp.where(index < begin, y_l, new)
                return product(place, new) if self.transposed else new, [new]

            start = jnp.maximum(begin - 1, 0)  # the last right step passes on its own state
            with fallback(FALLBACK, expected):
                passed, (done,) = steps_from(start, step, entry, [y], axis.backwards)
            return passed, done

        return axis.sequentially(shard, jnp.zeros_like(y[0]), y)


class Judged(NamedTuple):
    """A solution, and what its residual says.

    Attributes:
        y: ``[L, *batch, w]``.
        residual: the same shape.
        leaving: what the last step passes on.
        worst: the largest residual, relative to what a step adds.
        falls: whether it is much smaller than before the last correction.
        prefix: int32, the number of steps from the start that are right.
    """

    y: Array
    residual: Array
    leaving: Array
    worst: Array
    falls: Array
    prefix: Array


def solve_judged(
    system: System,
    blocks: Blocks,
    solve: Callable[[Blocks, Array], Array],
    rtol: float | None = None,
    by_blocks: bool = False,
) -> Judged:
    """The solution by ``solve``, corrected as long as that helps.

    Args:
        system: the recurrence.
        blocks: the ``A_l``.
        solve: ``(blocks, b) -> y``, in parallel.
        rtol: the tolerance on the residual, relative to what a step adds; None for rounding.
        by_blocks: whether the sequential program multiplies with the blocks.
    """
    b, axis, limits = system.b, system.axis, jnp.finfo(system.b.dtype)
    # What is below the smallest number is lost, so there are fewer digits near it.
    least = jnp.asarray(UNITS * float(limits.tiny) / float(limits.eps), limits.dtype)
    rounding = float(limits.eps) / math.sqrt(max(blocks.block_size, 1))  # of a sum of terms
    tolerance = UNITS * float(limits.eps) if rtol is None else rtol

    def judged(blocks: Blocks, y: Array, last: Judged | None = None) -> Judged:
        operator = blocks.transpose() if system.transposed else blocks

        products = partial(operator.apply, use="residual")

        def magnitudes(y: Array) -> Array:
            return jax.tree.map(jnp.abs, operator).apply(y, "residual")

        received, passed = system.coupled(products, y)
        residual = b + received - y
        terms = system.coupled(magnitudes, jnp.abs(y) + least)[0]
        added = terms if by_blocks else jnp.abs(received)
        usual, _ = usual_sizes(jnp.abs(b) + added + least, axis)
        size = jnp.abs(residual) + (0 if by_blocks else rounding * terms)
        small = (size <= tolerance * usual) & jnp.isfinite(y)
        if system.is_left:
            small &= jnp.isfinite(passed)
        relative = jnp.where(jnp.isfinite(size), size / usual, jnp.inf)
        (worst,), (prefix,) = axis.survey([relative], [small])
        falls = jnp.isfinite(worst) if last is None else worst * FALLS <= last.worst
        return Judged(y, residual, system.last(passed), worst, falls, prefix)

    def corrected(now: Judged) -> Judged:
        # The compiler would move what it does with the blocks out of the loop, and keep it.
        fenced, residual = lax.optimization_barrier((blocks, now.residual))
        return judged(fenced, now.y + solve(fenced, residual), now)

    return iterate(
        CORRECTION,
        lambda now: now.falls & (now.prefix < system.total),
        corrected,
        judged(blocks, solve(blocks, b)),
        budget=0,
        expected=0,
    )


def usual_sizes(local: Array, axis: ChainAxis) -> tuple[Array, Array]:
    """The size of each entry, ``[L, *batch, w]``, and of each state, ``[L, *batch, 1]``.

    The size of a state is that of its largest entry. An entry that happens to be near zero is still
    computed from terms of its usual size: it has the largest size that it reaches on the chain, but
    at most that of its state at this step. So an entry is small if the whole state has decayed.

    Args:
        local: ``[L, *batch, w]``, the size that each entry has at each step.
        axis: the chain axis.
    """
    local = jnp.where(jnp.isfinite(local), local, 0)
    common = local.max(axis=-1, keepdims=True, initial=0)
    usual = axis.largest(local.max(axis=0, initial=0))[None]
    return jnp.maximum(local, jnp.minimum(usual, common)), common
