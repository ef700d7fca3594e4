"""When is an iterate the answer? Judged by what the user's own function makes of it.

Two things have to hold at every step:

- the residual, the difference between a state and the step applied to the one before it, is at rounding level;
- what is still to come is, too, as far as updates tell. Newton's method squares an update, the residual carried along the chain
  by the linearised dynamics: it has to be below the root of rounding level. So a chain that amplifies differences, whose states
  have tiny residuals far from the sequential program's, is not taken for solved. Other iterations multiply their updates
  by some factor rho each time: after an update u, ``u rho / (1 - rho)`` is to come. The factor of a step is that of the largest
  update up to it, since what happens there depends on no later one.

A residual that no longer falls is at rounding level, too, if it is small. Newton's method halves it in every iteration many times
over. A quasi-Newton method may converge as slowly as it likes, so there the residual has to stand still for some iterations.
"""

import dataclasses
from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from deeppcr.across import HERE, Across

ROUNDING = 16  # a residual of so many units in the last place of the state is rounding
NOISE = 4  # an update of so many units is noise, and says nothing of what is to come
STAGNATION = 1000  # a residual that no longer falls is rounding, too, if it is below so many units


class Judgement(NamedTuple):
    """What is known of an iterate ``[L, *batch, w]``.

    Attributes:
        worst: the largest residual, relative to the states.
        least: the smallest ``worst`` so far.
        stalled: int32, for how many iterations it has not fallen much below that.
        moved: ``[L, *batch]``, the largest update of a state up to this step, relative to the states; infinite if there was none.
        good: ``[L, *batch]``, which states are right.
    """

    worst: Array
    least: Array
    stalled: Array
    moved: Array
    good: Array

    @classmethod
    def unknown(cls, states: Array) -> Self:
        """Before the first of ``states: [L, *batch, w]`` is judged."""
        infinite = jnp.full((), jnp.inf, states.dtype)
        shape = states.shape[:-1]
        return cls(infinite, infinite, jnp.int32(0), jnp.full(shape, jnp.inf, states.dtype), jnp.zeros(shape, bool))


@dataclasses.dataclass(frozen=True)
class Criterion:
    """What counts as converged.

    Attributes:
        rtol: how large a residual may be, relative to the size of the state; None for rounding.
        atol: how large it may be in any case.
        eps: of the dtypes of the state.
        working: of the dtype that iterates are computed in.
        quadratic: whether the iteration is Newton's.
    """

    rtol: float | None
    atol: float
    eps: float
    working: float
    quadratic: bool

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
        factor, patience = (0.5, 1) if self.quadratic else (0.9, 4)
        stalled = jnp.where(worst > factor * last.least, last.stalled + jnp.int32(1), jnp.int32(0))
        stagnates = (worst <= STAGNATION * self.eps) & (stalled >= patience)
        moved = across.cummax(jnp.maximum(update - self.atol, 0) / unit)
        settled = self._settled(moved, last.moved)
        rtol = ROUNDING * self.eps if self.rtol is None else self.rtol
        good = finite & settled & ((residual <= self.atol + rtol * size) | stagnates)
        return Judgement(worst, jnp.minimum(worst, last.least), stalled, moved, good)

    def _settled(self, moved: Array, before: Array) -> Array:
        """Whether no more is to come than what counts as rounding."""
        asked = self.rtol or 0.0
        if self.quadratic:
            return moved <= max(self.eps**0.5, asked)
        known = jnp.isfinite(before) & (moved < before)
        to_come = moved * moved / jnp.where(known, before - moved, 1)  # u rho / (1 - rho), rho = u / before
        return (moved <= NOISE * self.working) | (known & (to_come <= max(ROUNDING * self.working, asked)))


def largest(values: Array) -> Array:
    """The largest entry of every state, by size: ``[L, *batch]``."""
    return jnp.abs(values).max(axis=-1, initial=0)
