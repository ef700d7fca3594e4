"""When is an iterate the answer? Judged by what the user's own function makes of it.

Two things have to hold at every step:

- the residual, the difference between a state and the step applied to the one before it, is at rounding level;
- what is still to come is, too, as far as updates tell. Newton's method squares an update, the residual carried along the chain
  by the linearised dynamics: it has to be below the root of rounding level. So a chain that amplifies differences, whose states
  have tiny residuals far from the sequential program's, is not taken for solved. Other iterations multiply their updates
  by some factor rho each time: after an update u, ``u rho / (1 - rho)`` is to come. The factor of a step is that of the largest
  update up to it, since what happens there depends on no later one. An update is never smaller than its rounding, and a state may
  be a sum over all steps before it: below what that amounts to, updates are taken to shrink by the factor that was last seen
  above it.

A residual that no longer falls is at rounding level, too, if it is small. Newton's method halves it in every iteration many times
over. A quasi-Newton method may converge as slowly as it likes, so there the residual has to stand still for some iterations.
"""

import dataclasses
from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from deeppcr.across import HERE, Across

ROUNDING = 16  # a residual of so many units in the last place of the state is rounding
NOISE = 4  # an update of so many units is noise, and says nothing of what is to come; at step l sqrt(l) times as many may be
STAGNATION = 1000  # a residual that no longer falls is rounding, too, if it is below so many units


class Judgement(NamedTuple):
    """What is known of an iterate ``[L, *batch, w]``.

    Attributes:
        worst: the largest residual, relative to the states.
        least: the smallest ``worst`` so far.
        stalled: int32, for how many iterations it has not fallen much below that.
        moved: ``[L, *batch]``, the largest update of a state up to this step, relative to the states; infinite if there was none.
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
        shape = states.shape[:-1]
        unknown = jnp.full(shape, jnp.inf, states.dtype)
        return cls(infinite, infinite, jnp.int32(0), unknown, unknown, jnp.int32(0))


@dataclasses.dataclass(frozen=True)
class Criterion:
    """What counts as converged.

    Attributes:
        rtol: how large a residual may be, relative to the size of the state; None for rounding.
        atol: how large it may be in any case.
        eps: of the dtypes of the state.
        working: of the dtype that iterates are computed in.
        quadratic: whether the iteration is Newton's.
        rounding: how many units in the last place count as rounding.
    """

    rtol: float | None
    atol: float
    eps: float
    working: float
    quadratic: bool
    rounding: float = ROUNDING

    def __call__(
        self, value: Array, iterate: Array, scale: Array, update: Array, last: Judgement, across: Across = HERE
    ) -> Judgement:
        """Judge ``iterate``, where the steps make ``value`` of it.

        Args:
            value: ``[L, *batch, w]``.
            iterate: the same.
            scale: ``[L, *batch]``, the size of what the steps were applied to.
            update: the size of the last update; infinite if there was none.
            last: of the iterate before.
            across: where the chain is, and in which direction it runs.
        """
        finite = jnp.isfinite(value).all(axis=-1) & jnp.isfinite(iterate).all(axis=-1)
        size = jnp.maximum(largest(value), scale)
        unit = jnp.where(size > 0, size, 1)
        residual = jnp.where(finite, largest(value - iterate), jnp.inf)
        relative = jnp.where(residual > 0, residual / unit, 0)
        worst = across.largest(jnp.where(jnp.isnan(relative), jnp.inf, relative).max(initial=0))
        part, patience = (0.5, 1) if self.quadratic else (0.9, 4)
        stalled = jnp.where(worst > part * last.least, last.stalled + jnp.int32(1), jnp.int32(0))
        stagnates = (worst <= STAGNATION * self.eps) & (stalled >= patience)
        moved = jnp.maximum(update - self.atol, 0) / unit
        if self.quadratic:
            settled, moved, factor = moved <= max(self.eps**0.5, self.rtol or 0.0), last.moved, last.factor
        else:
            moved, factor, now = self._followed(across.cummax(moved), last, across)
            settled = self._settled(moved, now)
        rtol = self.rounding * self.eps if self.rtol is None else self.rtol
        settled &= finite
        # Counted both ways: whether residuals still fall is known only once all of them are.
        close, any_close = across.leading(settled & (residual <= self.atol + rtol * size), settled)
        converged = jnp.where(stagnates, any_close, close)
        return Judgement(worst, jnp.minimum(worst, last.least), stalled, moved, factor, converged)

    def _followed(self, moved: Array, last: Judgement, across: Across) -> tuple[Array, Array, Array]:
        """Updates without their rounding, the factor that is kept of them, and the factor that they shrink by."""
        before = jnp.sqrt(across.index(len(moved)).astype(moved.dtype)).reshape((-1, *(1,) * (moved.ndim - 1)))
        clear = moved > NOISE * self.working * (1 + jnp.broadcast_to(before, moved.shape))
        # Nothing is computed that is no number, not even where another value is taken: `jax.debug_nans` looks at all of it.
        told = jnp.isfinite(last.moved)
        moves = told & (last.moved > 0)
        ratio = jnp.where(moves, moved / jnp.where(moves, last.moved, 1), jnp.inf)
        factor = jnp.where(clear, ratio, last.factor)
        known = factor < 1
        expected = jnp.where(known, factor, 0) * jnp.where(told, last.moved, 0)
        followed = jnp.where(clear | ~known | ~told, moved, jnp.minimum(moved, expected))
        return followed, factor, jnp.where(known, factor, ratio)

    def _settled(self, moved: Array, factor: Array) -> Array:
        """Whether no more is to come than what counts as rounding."""
        asked = self.rtol or 0.0
        shrinks = (factor < 1) & jnp.isfinite(moved)
        to_come = jnp.where(shrinks, moved, 0) * jnp.where(shrinks, factor, 0) / jnp.where(shrinks, 1 - factor, 1)
        return (moved <= NOISE * self.working) | (shrinks & (to_come <= max(self.rounding * self.working, asked)))


def largest(values: Array) -> Array:
    """The largest entry of every state, by size: ``[L, *batch]``."""
    return jnp.abs(values).max(axis=-1, initial=0)
