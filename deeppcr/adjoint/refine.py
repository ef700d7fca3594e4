"""Iterative refinement of linear recurrences with approximate blocks.

With blocks ``B_l`` near the true ``A_l``, each iteration solves for a correction of
``y = M^{-1} b``,

    r = b + A y - y,    y <- y + (I - B)^{-1} r        (A, B: below the diagonal),

where ``A y`` is one product of all steps' derivatives with a vector and no Jacobian. The error is
multiplied by ``(I - B)^{-1} (A - B)``, whose L-th power is zero. If the budget is spent, the
sequential fallback solves the steps that have not converged.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import ChainAxis
from deeppcr.loops import FALLBACK, REFINEMENT, fallback, iterate
from deeppcr.newton.convergence import Convergence, Criterion
from deeppcr.newton.expected import expected_iterations


class _Iterate(NamedTuple):
    iterations: Array
    y: Array
    coupled: Array  # the true A y
    convergence: Convergence


def refine(
    couple: Callable[[Array], Array],
    solve: Callable[[Array], Array],
    product: Callable[[Array, Array], Array],
    b: Array,
    criterion: Criterion,
    budget: int,
    axis: ChainAxis,
) -> Array:
    """The solution of ``y_l = b_l + A_l y_{l-1}``, or backwards ``y_l = b_l + A_{l+1}^T y_{l+1}``.

    Args:
        couple: ``y -> A y``, with the true blocks.
        solve: ``b -> y``, with the approximate blocks.
        product: ``(l, v) -> A_l v``, backwards ``A_l^T v``; l counts from 0 in memory order.
        b: ``[L, *batch, w]``.
        criterion: the convergence criterion.
        budget: the maximum number of iterations.
        axis: the chain axis, in the direction of the recurrence.

    Returns:
        y: ``[L, *batch, w]``.
    """
    length, nothing = len(b), jnp.zeros_like(b[0])
    total = axis.total(length)
    expected = expected_iterations(total, is_exact=False)

    def checked(now: _Iterate, y: Array, update: Array) -> _Iterate:
        coupled = couple(y)
        before = axis.before(nothing, y)
        found = criterion(b + coupled, y, before, update, now.iterations, now.convergence, axis)
        return _Iterate(now.iterations, y, coupled, found)

    def iteration(now: _Iterate) -> _Iterate:
        correction = solve(b + now.coupled - now.y)
        y = jnp.where(jnp.isfinite(correction), now.y + correction, now.y)
        following = now._replace(iterations=now.iterations + jnp.int32(1))
        return checked(following, y, jnp.abs(correction))

    first, none = solve(b), jnp.int32(0)
    start = _Iterate(none, first, first, Convergence.unknown(b, none))
    end = iterate(
        REFINEMENT,
        lambda now: (now.iterations < budget) & (now.convergence.converged < total),
        iteration,
        checked(start, first, jnp.full_like(b, jnp.inf)),
        budget,
        expected,
    )
    prefix = end.convergence.converged

    def finish(carry: Array, y: Array) -> tuple[Array, Array]:
        """The rest of a shard. The carry is ``y_{l-1}``, backwards ``A_{l+1}^T y_{l+1}``."""

        def position(index: Array) -> Array:
            return length - 1 - index if axis.backwards else index

        def at(x: Array, index: Array) -> Array:
            return lax.dynamic_index_in_dim(x, position(index), keepdims=False)

        def step(index: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            carry, y = state
            added = carry if axis.backwards else product(position(index), carry)
            right = at(b, index)
            is_first = (index == 0) & (axis.rank == 0)  # the first block is ignored
            new = jnp.where(is_first, right, right + added)
            carry = product(position(index), new) if axis.backwards else new
            return carry, lax.dynamic_update_index_in_dim(y, new, position(index), 0)

        begin = jnp.clip(prefix - axis.rank * length, 0, length).astype(jnp.int32)
        known = jnp.maximum(begin - 1, 0)
        last = at(y, known)
        resumed = product(position(known), last) if axis.backwards else last
        with fallback(FALLBACK, expected > budget):
            left: tuple[Array, Array] = lax.fori_loop(
                begin, jnp.int32(length), step, (jnp.where(begin > 0, resumed, carry), y)
            )
        return left

    if axis.size == 1:
        return finish(nothing, end.y)[1]
    y: Array = lax.cond(
        prefix < total, lambda: axis.sequentially(finish, nothing, end.y)[1], lambda: end.y
    )
    return y
