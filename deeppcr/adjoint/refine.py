"""Linear recurrences with blocks that are only nearly right: solve, look at the residual, correct.

With blocks ``B_l`` near the true ``A_l``, each turn solves for a correction of ``y = M^{-1} b``,

    r = b + A y - y,    y <- y + (I - B)^{-1} r        (A, B: one place below the diagonal),

where ``A y`` is one product of all steps' derivatives with a vector and no Jacobian. The error is multiplied by ``(I - B)^{-1} (A
- B)``, which vanishes after L turns; what has not converged by the end of the budget is solved step by step, from where it has.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.convergence import Criterion, Judgement, largest, leading
from deeppcr.linear.along import Along


class _Turn(NamedTuple):
    turns: Array
    y: Array
    coupled: Array  # the true A y
    judgement: Judgement
    prefix: Array  # how many have converged, counted from where the recurrence starts


def refine(
    couple: Callable[[Array], Array],
    solve: Callable[[Array], Array],
    one_step: Callable[[Array, Array], Array],
    b: Array,
    criterion: Criterion,
    budget: int,
    reverse: bool,
) -> Array:
    """The solution of ``y_l = A_l y_{l-1} + b_l``, ``[L, *batch, w]``; ``reverse``: of the recurrence that runs the other way.

    Args:
        couple: ``y`` to ``A_l y_{l-1}`` for all l, with the true blocks.
        solve: ``b`` to the solution with the blocks at hand.
        one_step: l, counted in memory order from 0, and the state before it, to ``A_l y_{l-1}``.
        b: ``[L, *batch, w]``.
        criterion: what counts as converged.
        budget: how many turns.
        reverse: whether ``y_{l+1}`` comes before ``y_l``.
    """
    length, along = len(b), Along(reverse=reverse)

    def in_order(x: Array) -> Array:
        return jnp.flip(x, 0) if reverse else x

    def checked(now: _Turn, y: Array, update: Array) -> _Turn:
        coupled = couple(y)
        value, iterate, scale, moved = (in_order(x) for x in (b + coupled, y, largest(along.before(y)), update))
        judgement = criterion(value, iterate, scale, moved, now.judgement)
        return _Turn(now.turns, y, coupled, judgement, leading(judgement.good))

    def turn(now: _Turn) -> _Turn:
        correction = solve(b + now.coupled - now.y)
        y = jnp.where(jnp.isfinite(correction), now.y + correction, now.y)
        return checked(now._replace(turns=now.turns + jnp.int32(1)), y, largest(correction))

    first = solve(b)
    start = _Turn(jnp.int32(0), first, first, Judgement.unknown(b), jnp.int32(0))
    start = checked(start, first, jnp.full(b.shape[:-1], jnp.inf, b.dtype))
    end = lax.while_loop(lambda now: (now.turns < budget) & (now.prefix < length), turn, start)

    def step(index: Array, y: Array) -> Array:
        place = length - 1 - index if reverse else index
        last = lax.dynamic_index_in_dim(y, jnp.clip(place + (1 if reverse else -1), 0, length - 1), keepdims=False)
        here = lax.dynamic_index_in_dim(b, place, keepdims=False)
        new = jnp.where(index == 0, here, here + one_step(place, last))
        return lax.dynamic_update_index_in_dim(y, new, place, 0)

    y: Array = lax.fori_loop(end.prefix, jnp.int32(length), step, end.y)
    return y
