"""When is an iterate the answer? Judged by what the user's own function makes of it, entry by entry.

Two things have to hold at every step:

- the residual, the difference between a state and the step applied to the one before it, is at rounding level;
- what is still to come is, too, as far as updates tell. Newton's method squares an update, the residual carried along the chain
  by the linearised dynamics: it has to be below the root of rounding level. So a chain that amplifies differences, whose states
  have tiny residuals far from the sequential program's, is not taken for solved. Other iterations multiply their updates
  by some factor rho each time: after an update u, ``u rho / (1 - rho)`` is to come. The factor of a step is that of the largest
  update up to it, since what happens there depends on no later one. An update is never smaller than its rounding, and a state may
  be a sum over all steps before it: below what that amounts to, updates are taken to shrink by the factor that was last seen
  above it.

Rounding level is a number of units in the last place of each entry, in its own dtype: a clock that has reached 10^4 has no say in
what is rounding for the entry of size 1 beside it. See `sizes` for the size of an entry.

The rounding of a large entry can reach a small one all the same, where the step adds them up and takes them apart again. Then the
residual of the small one no longer falls, and that is the end, too. Newton's method halves a residual in every iteration many
times over, so there the residual need be small beside the whole state only. A quasi-Newton method may converge as slowly as it
likes: there it has to be small beside the entry itself, and to stand still for some iterations.
"""

import dataclasses
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.across import HERE, Across

ROUNDING = 16  # a residual of so many units in the last place is rounding
NOISE = 4  # an update of so many units is noise, and says nothing of what is to come; at step l sqrt(l) times as many may be
STAGNATION = 1000  # a residual that no longer falls is rounding, too, if it is below so many units of the largest entry


class Judgement(NamedTuple):
    """What is known of an iterate ``[L, *batch, w]``.

    Attributes:
        worst: the largest residual, relative to the size of the entry.
        least: the smallest of these so far, in units in the last place.
        stalled: int32, for how many iterations it has not fallen much below that.
        moved: ``[L, *batch]``, the largest update up to this step, relative to the size of the state; infinite if there was none.
            Newton's method does not need it, nor the factor: what it still has to come, an update tells by itself.
        factor: ``[L, *batch]``, by what it was multiplied in an iteration, the last time that it was more than rounding; infinite
            if that is not known.
        converged: int32, how many states from the start are right.
    """

    worst: Array
    least: Array
    stalled: Array
    moved: Array
    factor: Array
    converged: Array

    @classmethod
    def unknown(cls, states: Array) -> Self:
        """Before the first of ``states: [L, *batch, w]`` is judged."""
        infinite = jnp.full((), jnp.inf, states.dtype)
        unknown = jnp.full(states.shape[:-1], jnp.inf, states.dtype)
        return cls(infinite, infinite, jnp.int32(0), unknown, unknown, jnp.int32(0))


@dataclasses.dataclass(frozen=True)
class Criterion:
    """What counts as converged.

    Attributes:
        rtol: how large a residual may be, relative to the size of the entry; None for rounding.
        atol: how large it may be in any case.
        eps: the unit in the last place of a number of size 1, of every entry: ``(entries, eps)`` of each leaf of the state.
        working: the same of the dtype that iterates are computed in.
        quadratic: whether the iteration is Newton's.
        rounding: how many units in the last place count as rounding.
    """

    rtol: float | None
    atol: float
    eps: tuple[tuple[int, float], ...]
    working: float
    quadratic: bool
    rounding: float = ROUNDING

    def __call__(
        self,
        value: Array,
        iterate: Array,
        origin: Array,
        update: Array,
        last: Judgement,
        across: Across = HERE,
    ) -> Judgement:
        """Judge ``iterate``, where the steps make ``value`` of it.

        Args:
            value: ``[L, *batch, w]``.
            iterate: the same.
            origin: the same: what the steps were applied to.
            update: the same: by how much the last iteration has changed it; infinite if there was none.
            last: of the iterate before.
            across: where the chain is, and in which direction it runs.
        """
        eps, coarsest = self._units(value), max(eps for _, eps in self.eps)
        finite = (jnp.isfinite(value) & jnp.isfinite(iterate)).all(axis=-1)
        own, common = sizes(value, origin, across)
        residual = jnp.where(finite[..., None], jnp.abs(value - iterate), jnp.inf)
        relative = _over(residual, own)
        worst, worst_units = (across.largest(x.max(initial=0)) for x in (relative, relative / eps))
        part, patience = (0.5, 1) if self.quadratic else (0.9, 4)
        stalled = jnp.where(
            worst_units > part * last.least, last.stalled + jnp.int32(1), jnp.int32(0)
        )
        update, asked = jnp.maximum(update - self.atol, 0), self.rtol or 0.0
        if self.quadratic:
            moved, factor = last.moved, last.factor
            settled = (_over(update, own) <= np.maximum(np.sqrt(eps), asked)).all(axis=-1)
            at_rest = (_over(update, own) <= max(coarsest**0.5, asked)).all(axis=-1)
            beside = across.largest(_over(residual, common).max(initial=0))
        else:
            largest = across.cummax(
                jnp.stack(
                    [_over(update, size).max(axis=-1, initial=0) for size in (common, own)], axis=-1
                )
            )
            moved, factor, now = self._followed(largest[..., 0], last, across)
            # By no more than it has been, nor than all the state's would be if it were the entry's.
            share = jnp.where(
                own > 0, jnp.maximum(_over(own, common), jnp.finfo(own.dtype).tiny), 1
            ).min(axis=-1, initial=1)
            settled = at_rest = self._settled(jnp.minimum(largest[..., 1], moved / share), now)
            beside = worst
        stagnates = (beside <= STAGNATION * coarsest) & (stalled >= patience)
        rtol = self.rounding * eps if self.rtol is None else self.rtol
        small = (residual <= self.atol + rtol * own).all(axis=-1)
        # Counted both ways: whether residuals still fall is known only once all of them are.
        close, any_close = across.leading(settled & finite & small, at_rest & finite)
        converged = jnp.where(stagnates, any_close, close)
        return Judgement(
            worst, jnp.minimum(worst_units, last.least), stalled, moved, factor, converged
        )

    def _units(self, like: Array) -> np.ndarray:
        """``eps``: a number, or one for each entry, ``[1, .., 1, w]``."""
        entries, eps = zip(*self.eps, strict=True)
        if len(set(eps)) == 1:
            return np.asarray(eps[0], like.dtype)
        return np.repeat(eps, entries).astype(like.dtype).reshape((*(1,) * (like.ndim - 1), -1))

    def _followed(
        self, moved: Array, last: Judgement, across: Across
    ) -> tuple[Array, Array, Array]:
        """Updates without their rounding, the factor that is kept of them, and the factor that they shrink by."""
        before = jnp.sqrt(across.index(len(moved)).astype(moved.dtype)).reshape(
            (-1, *(1,) * (moved.ndim - 1))
        )
        clear = moved > NOISE * self.working * (1 + jnp.broadcast_to(before, moved.shape))
        # Nothing is computed that is no number, not even where another value is taken: `jax.debug_nans` looks at all of it.
        has_last = jnp.isfinite(last.moved)
        moves = has_last & (last.moved > 0)
        ratio = jnp.where(moves, moved / jnp.where(moves, last.moved, 1), jnp.inf)
        factor = jnp.where(clear, ratio, last.factor)
        known = factor < 1
        expected = jnp.where(known, factor, 0) * jnp.where(has_last, last.moved, 0)
        followed = jnp.where(clear | ~known | ~has_last, moved, jnp.minimum(moved, expected))
        return followed, factor, jnp.where(known, factor, ratio)

    def _settled(self, moved: Array, factor: Array) -> Array:
        """Whether no more is to come than what counts as rounding."""
        shrinks = (factor < 1) & jnp.isfinite(moved)
        to_come = (
            jnp.where(shrinks, moved, 0)
            * jnp.where(shrinks, factor, 0)
            / jnp.where(shrinks, 1 - factor, 1)
        )
        return (moved <= NOISE * self.working) | (
            shrinks & (to_come <= max(self.rounding * self.working, self.rtol or 0.0))
        )


def _over(values: Array, size: Array) -> Array:
    """``values / size``; of a size of zero, the values."""
    return jnp.where(values > 0, values / jnp.where(size > 0, size, 1), 0)


def sizes(value: Array, origin: Array, across: Across = HERE) -> tuple[Array, Array]:
    """The size of each entry ``[L, *batch, w]``, and of each state, its largest entry ``[L, *batch, 1]``.

    An entry has the size that it has before and after the step. One that happens to be near zero is still computed from terms of
    its usual size, so it has the size that it reaches anywhere on the chain, as far as the state has that size here: an entry
    that has died out is small.
    """
    local = jnp.maximum(jnp.abs(value), jnp.abs(origin))
    local = jnp.where(jnp.isfinite(local), local, 0)
    common = local.max(axis=-1, keepdims=True, initial=0)
    usual = across.largest(local.max(axis=0, initial=0))[None]
    return jnp.maximum(local, jnp.minimum(usual, common)), common
