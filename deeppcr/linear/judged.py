"""Check solutions by their residual, correct them, and recompute rejected steps sequentially.

A parallel solver multiplies blocks with each other. A product of blocks may overflow although every
state is finite, as for ``A_l = 30`` and states that stay 0, and it may lose all digits, as for
nonnormal blocks, whose products are far larger than their effect on the states. Other blocks are
only near the ``A_l``. The sequential program rounds what it adds in each step, and nothing else. So
a solution is as good as its own if the residual of every step,

    r_l = b_l + A_l y_{l-1} - y_l,

is at most a few units of what is added: ``|b_l| + |A_l y_{l-1}|``, or ``|b_l| + |A_l| |y_{l-1}|``
if the sequential program multiplies with blocks, which rounds each term. Otherwise the solution is
corrected by ``y <- y + (I - B)^{-1} r``, with blocks ``B_l`` at or near the ``A_l`` below the
diagonal. That multiplies its error by ``(I - B)^{-1} (A - B)``, whose L-th power is zero. What is
still wrong when the budget is spent the caller computes step by step.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays import Leaves
from deeppcr.axis import ChainAxis
from deeppcr.loops import CORRECTION, FALLBACK, fallback, iterate, steps_from

UNITS = 16  # in the last place, up to which a residual is rounding
# The same of approximate blocks, and of their corrections: small residuals of one sign add up along
# the chain. Errors of 45 gradients are up to 14 units in float32 and float64, where jax's own are
# up to 11, and 1.1 times jax's in bfloat16 (jax 0.10.2). Below 4 units it may not end.
FEW_UNITS = 8
CORRECTIONS = 3  # by exact blocks: if more would help, they have lost too many digits
MOST_CORRECTIONS = 64  # corrections by approximate blocks
USUAL_CORRECTIONS = 18  # of them to expect

Products = Callable[[Any, Array], Array]


@dataclasses.dataclass(frozen=True)
class System:
    """``y_l = b_l + A_l y_{l-1}``, or its transpose ``y_l = b_l + A_{l+1}^T y_{l+1}``.

    The block of the first step of the chain is ignored; of the transpose that is the last step.

    Attributes:
        b: ``[L, *batch, w]``.
        axis: the chain axis, in the direction of the recurrence.
        transposed: whether a block belongs to the step that passes on, not to that which receives.
    """

    b: Array
    axis: ChainAxis
    transposed: bool = False

    def received(self, products: Callable[[Array], Array], y: Array) -> Array:
        """What each step adds to ``b``; ``products``: ``y -> A_l y_l``, or ``A_l^T y_l``."""
        nothing = jnp.zeros_like(y[0])
        if self.transposed:
            return self.axis.before(nothing, products(y))
        received = products(self.axis.before(nothing, y))
        is_first = self.axis.indices(y.shape) == 0
        return jnp.where(is_first, jnp.zeros_like(y), received)

    @property
    def total(self) -> int:
        """The number of steps in all shards."""
        return self.axis.total(len(self.b))

    def complete(self, product: Callable[[Array, Array], Array], y: Array, prefix: Array) -> Array:
        """``y: [L, *batch, w]``, with all steps after the first ``prefix`` one after another.

        ``product``: ``(l, v) -> A_l v``, or ``A_l^T v``; l counts from 0 in memory order.
        """
        axis, length = self.axis, len(self.b)

        def shard(entry: Array, y: Array) -> tuple[Array, Array]:
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
            with fallback(FALLBACK):
                passed, (done,) = steps_from(start, step, entry, [y], axis.backwards)
            return passed, done

        return axis.sequentially(shard, jnp.zeros_like(y[0]), y)[1]


class _Corrected(NamedTuple):
    """A solution, its residual, and the number of steps from the start that are right."""

    iterations: Array
    y: Array
    residual: Array
    prefix: Array


def solve_judged(
    system: System,
    arrays: Any,
    solve: Callable[[Any, Array], Array],
    products: Products,
    magnitudes: Products | None = None,
    tolerance: float | np.ndarray | None = None,
    budget: int = CORRECTIONS,
    expected: int = 0,
) -> tuple[Array, Array]:
    """The solution by ``solve``, and the number of steps from the start that are right: int32.

    These are as good as those of the sequential program.

    Args:
        system: the recurrence.
        arrays: what ``solve`` and products are made of, a pytree.
        solve: ``(arrays, b) -> y``, with blocks at or near those of the system.
        products: ``(arrays, y) -> A_l y_l`` for all l, or ``A_l^T y_l``.
        magnitudes: the same with ``|A_l|``, if the sequential program multiplies with blocks.
        tolerance: on the residual, relative to what a step adds: one, or one for each entry. None
            for rounding.
        budget: the maximum number of corrections.
        expected: the number of corrections to expect. If there are some, the blocks are not exact,
            and a small residual tells less than the last correction: it has to be small, too.
    """
    b, axis, limits = system.b, system.axis, jnp.finfo(system.b.dtype)
    # What is below the smallest number is lost, so there are fewer digits near it.
    least = jnp.asarray(UNITS * float(limits.tiny) / float(limits.eps), limits.dtype)
    rtol = UNITS * float(limits.eps) if tolerance is None else tolerance

    def judged(arrays: Any, y: Array, update: Array, iterations: Array) -> _Corrected:
        received = system.received(partial(products, arrays), y)
        added = jnp.abs(received)
        if magnitudes is not None:
            added = system.received(partial(magnitudes, arrays), jnp.abs(y) + least)
        usual, _ = usual_sizes(jnp.abs(b) + added + least, axis)
        residual = b + received - y
        error = jnp.maximum(jnp.abs(residual), jnp.abs(update)) if expected else jnp.abs(residual)
        right = error <= jnp.broadcast_to(jnp.asarray(rtol, b.dtype), b.shape) * usual
        _, (prefix,) = axis.survey([], [right & jnp.isfinite(y)])
        return _Corrected(iterations, y, residual, prefix)

    def corrected(now: _Corrected) -> _Corrected:
        fenced, residual = arrays, now.residual
        if not expected:
            # The compiler would move what it does with them out of the loop, and keep it.
            fenced, residual = lax.optimization_barrier((arrays, residual))
        update = solve(fenced, residual)
        return judged(fenced, now.y + update, update, now.iterations + jnp.int32(1))

    first = solve(arrays, b)
    end = iterate(
        CORRECTION,
        lambda now: (now.iterations < budget) & (now.prefix < system.total),
        corrected,
        judged(arrays, first, first, jnp.int32(0)),
        budget if expected else 0,
        expected,
    )
    return end.y, end.prefix


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
