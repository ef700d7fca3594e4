"""Linear recurrences with blocks that are only nearly right: solve, look at the residual, correct.

With blocks ``B_l`` near the true ``A_l``, each turn solves for a correction of ``y = M^{-1} b``,

    r = b + A y - y,    y <- y + (I - B)^{-1} r        (A, B: one place below the diagonal),

where ``A y`` is one product of all steps' derivatives with a vector and no Jacobian. The error is multiplied by ``(I - B)^{-1} (A
- B)``, which vanishes after L turns; what has not converged by the end of the budget is solved step by step, from where it has.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import ChainAxis
from deeppcr.convergence import Criterion, Judgement
from deeppcr.loops import FINISHING, iterate


class _Turn(NamedTuple):
    turns: Array
    y: Array
    coupled: Array  # the true A y
    judgement: Judgement
    prefix: Array  # how many have converged, counted from where the recurrence starts


def refine(
    couple: Callable[[Array], Array],
    solve: Callable[[Array], Array],
    product: Callable[[Array, Array], Array],
    b: Array,
    criterion: Criterion,
    budget: int,
    axis: ChainAxis,
) -> Array:
    """The solution of ``y_l = b_l + A_l y_{l-1}``, ``[L, *batch, w]``, or backwards of ``y_l = b_l + A_{l+1}^T y_{l+1}``.

    Args:
        couple: ``y`` to what is added to ``b``, for all l, with the true blocks.
        solve: ``b`` to the solution with the blocks at hand.
        product: l, counted in memory order from 0, and a vector, to ``A_l`` (backwards ``A_l^T``) times it.
        b: ``[L, *batch, w]``.
        criterion: what counts as converged.
        budget: how many turns.
        axis: where the chain is, and in which direction the recurrence runs.
    """
    length = len(b)
    total = axis.total(length)
    nothing = jnp.zeros_like(b[0])

    def checked(now: _Turn, y: Array, update: Array) -> _Turn:
        coupled = couple(y)
        judgement = criterion(
            b + coupled, y, axis.before(nothing, y), update, now.judgement, axis
        )
        return _Turn(now.turns, y, coupled, judgement, judgement.converged)

    def turn(now: _Turn) -> _Turn:
        correction = solve(b + now.coupled - now.y)
        y = jnp.where(jnp.isfinite(correction), now.y + correction, now.y)
        return checked(now._replace(turns=now.turns + jnp.int32(1)), y, jnp.abs(correction))

    first = solve(b)
    start = _Turn(jnp.int32(0), first, first, Judgement.unknown(b), jnp.int32(0))
    start = checked(start, first, jnp.full_like(b, jnp.inf))
    end = iterate(lambda now: (now.turns < budget) & (now.prefix < total), turn, start, budget)

    def run(carry: Array, y: Array) -> tuple[Array, Array]:
        """What is left of a part. What is carried from step to step is ``y_{l-1}``, backwards ``A_{l+1}^T y_{l+1}``."""

        def place_of(index: Array) -> Array:
            return length - 1 - index if axis.backwards else index

        def at(index: Array) -> Array:
            return lax.dynamic_index_in_dim(y, place_of(index), keepdims=False)

        def step(index: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            carry, y = state
            place = place_of(index)
            added = carry if axis.backwards else product(place, carry)
            here = lax.dynamic_index_in_dim(b, place, keepdims=False)
            new = jnp.where(
                (index == 0) & (axis.rank == 0), here, here + added
            )  # the first block is never looked at
            carry = product(place, new) if axis.backwards else new
            return carry, lax.dynamic_update_index_in_dim(y, new, place, 0)

        begin = jnp.clip(end.prefix - axis.rank * length, 0, length).astype(jnp.int32)
        known = jnp.maximum(begin - 1, 0)
        resumed = product(place_of(known), at(known)) if axis.backwards else at(known)
        with jax.named_scope(FINISHING):
            left: tuple[Array, Array] = lax.fori_loop(
                begin, jnp.int32(length), step, (jnp.where(begin > 0, resumed, carry), y)
            )
        return left

    if axis.size == 1:
        return run(nothing, end.y)[1]
    y: Array = lax.cond(
        end.prefix < total, lambda: axis.in_turn(run, nothing, end.y)[1], lambda: end.y
    )
    return y
