"""The convergence test, by the residual of the user's own step, entry by entry.

Two conditions must hold at every step:

- The residual, the difference between a state and the step applied to the state before it, is at
  rounding level.
- The estimated remaining change is at rounding level. An update is the residual, propagated along
  the chain by the linearised dynamics. Newton's method squares it, so the update must be below the
  square root of rounding level. This excludes chains that amplify differences, whose residuals can
  be tiny far from the sequential program's states. Other iterations contract their updates by a
  factor rho: after an update u, the remaining change is ``u rho / (1 - rho)``. The factor of a step
  is that of the largest update up to it, since a step does not depend on later ones. Updates have
  a rounding error, which may be that of a sum over all earlier steps. Below this error, the factor
  last observed above it is used.

Rounding level is a number of units in the last place of each entry, in its own dtype: a clock that
has reached 10^4 does not relax the tolerance of another entry of size 1. See `sizes` for the size
of an entry.

The rounding error of a large entry can still reach a small one, if the step adds and then subtracts
it. Then the residual of the small entry stagnates, which ends the iteration, too. Newton's method
reduces residuals by a large factor in every iteration, so there a stagnating residual need only be
small relative to the whole state. A quasi-Newton method may converge slowly, so there it must be
small relative to the entry, and stagnate for some iterations.

A step may have a larger rounding error of its own, for example if it solves equations, or if the
user chose products in TF32. Then neither residuals nor updates of Newton's method fall any
more. That ends the iteration, as a plateau, once every update is below the square root of rounding
level, or at the level of such products, and no residual is far above: updates of an iteration that
has not converged do not stand still there. An update that is much smaller than the residual solves
no equation: then products of blocks have lost their digits.
"""

import dataclasses
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.linear import usual_sizes
from deeppcr.lower import target

ROUNDING = 16  # units in the last place up to which a residual is rounding
NOISE = 4  # units up to which an update is noise; sqrt(l) times as many at step l
STAGNATION = (
    1000  # units of the largest entry, below which a residual that stands still is rounding
)
PLATEAU = 4  # iterations in which neither residuals nor updates fall, at whatever level

# Iterations of Newton's method on chains that forget: of gated cells 4 to 6, of tanh layers 8, at
# any length (H100, jax 0.11.2, products in full precision).
USUAL = 6
# Iterations without exact Jacobians, in those with: a trained GRU takes 2.6 times as many, other
# chains 2 to 10.
QUASI = 3
# Of an affine step: one, and another that confirms it unless its blocks are seen to contract.
AFFINE = 2


def expected_iterations(
    length: int, is_exact: bool = True, windows: int = 1, is_affine: bool = False
) -> int:
    """The number of iterations to expect, before anything runs.

    Args:
        length: the number of steps that are solved at once.
        is_exact: whether the Jacobians are exact.
        windows: the number of windows, which are solved one after another.
        is_affine: whether the step is affine in its state.
    """
    usual = (AFFINE if is_affine else USUAL) if is_exact else QUASI * USUAL
    return windows * min(usual, length + 1)


class Convergence(NamedTuple):
    """The convergence state of an iterate ``[L, *batch, w]``.

    Attributes:
        worst: the largest residual, relative to the size of the entry.
        history: a `group` of four numbers: the smallest of these so far, in units in the last
            place; the same of the largest updates, relative to the size of the entry; and the
            iterations in which either last fell much below that. The smallest are below 0 before
            the first test. That of the initial trajectory does not count: good iterates may stray
            above it.
        update_norm: ``[L, *batch]``, the largest update up to this step, relative to the size of
            the state; inf before the first. Only quasi-Newton methods use it, and the next.
        contraction: ``[L, *batch]``, estimated contraction factor of each step's update; inf while
            unknown.
        converged: int32, the number of states from the start that are right.
        same: int32, the number that the step reproduces to the last bit.
        finite: int32, the number that the step makes finite.
    """

    worst: Array
    history: tuple[Array, ...]
    update_norm: Array
    contraction: Array
    converged: Array
    same: Array
    finite: Array

    @classmethod
    def unknown(cls, states: Array) -> Self:
        """The convergence state before the first test, of ``states: [L, *batch, w]``."""
        infinite, unknown = (
            jnp.full(shape, jnp.inf, states.dtype) for shape in ((), states.shape[:-1])
        )
        none, before = jnp.int32(0), jnp.full((), -1, states.dtype)
        history = group(-infinite, -infinite, before, before)
        return cls(infinite, history, unknown, unknown, none, none, none)

    def shifted(self, distance: Array, entered: Array, iterations: Array) -> Self:
        """The state of a window that has moved on by ``distance`` steps, not yet tested there.

        The steps that have ``entered``, bool ``[L, *batch]``, have no history, and may raise the
        residual. ``iterations``, int32, have made the states.
        """
        norm, contraction = (
            jnp.where(entered, jnp.inf, jnp.roll(x, -distance, axis=0))
            for x in (self.update_norm, self.contraction)
        )
        infinite = jnp.full((), jnp.inf, self.worst.dtype)
        before = (iterations - jnp.int32(1)).astype(infinite.dtype)
        fresh = group(infinite, infinite, before, before)
        history = jax.tree.map(partial(jnp.where, distance > 0), fresh, self.history)
        return self._replace(update_norm=norm, contraction=contraction, history=history)


@dataclasses.dataclass(frozen=True)
class Criterion:
    """The convergence criterion.

    Attributes:
        rtol: the tolerance on the residual relative to the size of the entry; None for rounding
            level.
        atol: the absolute tolerance on the residual, or ``[L, .., 1]``, one for each step.
        eps: one unit in the last place of 1 for each leaf of the state: ``(entries, eps)``.
        working: the same for the dtype of the iterates.
        quadratic: whether the iteration is Newton's method.
        rounding: the number of units in the last place that count as rounding.
        own_rounding: the unit roundoff of products in the step, if that is larger; else 0.
    """

    rtol: float | None
    atol: float | Array
    eps: tuple[tuple[int, float], ...]
    working: float
    quadratic: bool
    rounding: float = ROUNDING
    own_rounding: float = 0.0

    def __call__(
        self,
        value: Array,
        iterate: Array,
        origin: Array,
        update: Array,
        iterations: Array,
        last: Convergence,
        axis: ChainAxis = LOCAL,
    ) -> Convergence:
        """The convergence state of ``iterate``.

        Args:
            value: ``[L, *batch, w]``, the step applied to ``origin``.
            iterate: the same shape.
            origin: the same shape: the state before each step.
            update: the same shape: the size of the last change; inf before the first, and 0 if
                the residual alone tells.
            iterations: int32, the number of iterations that have made ``iterate``.
            last: the convergence state of the iterate before.
            axis: the chain axis, in the direction of the recurrence.
        """
        eps, coarsest = self._units(value), max(eps for _, eps in self.eps)
        defined = jnp.isfinite(value)
        finite = defined & jnp.isfinite(iterate)
        own, common = sizes(value, origin, axis)
        residual = jnp.where(finite, jnp.abs(value - iterate), jnp.inf)
        relative = _over(residual, own)
        update = jnp.maximum(update - self.atol, 0)
        norm, contraction = last.update_norm, last.contraction
        changed = _over(update, own)
        if self.quadratic:
            converges = changed <= np.maximum(np.sqrt(eps), self.rtol or 0.0)
            at_rest = changed <= self._rest
        else:
            norms = [_over(update, size).max(axis=-1, initial=0) for size in (common, own)]
            so_far = axis.cummax(jnp.stack(norms, axis=-1))
            norm, contraction, now = self._denoised(so_far[..., 0], last, axis)
            # The update of an entry: the smaller of its own and, in its units, the state's.
            tiny = jnp.finfo(own.dtype).tiny
            share = jnp.where(own > 0, jnp.maximum(_over(own, common), tiny), 1)
            of_entry = jnp.minimum(so_far[..., 1], norm / share.min(axis=-1, initial=1))
            converges = at_rest = self._is_small(of_entry, now)[..., None]
        if self.is_given:  # a state is right if its residual is, and so are the states before it
            right = jnp.ones((), bool)
            converges, at_rest = (axis.before(right, each) for each in (converges, at_rest))
        rtol = ROUNDING * eps if self.rtol is None else self.rtol
        small = residual <= self.atol + rtol * own
        # Count under both assumptions: whether residuals still fall is known once all are computed.
        values = [relative, changed]
        values += [_over(residual, common)] if self.quadratic else []
        values += [relative / eps] if eps.ndim else []  # leaves of several dtypes
        true = [converges & finite & small, at_rest & finite, value == iterate, defined]
        largest, (close, any_close, same, finite_states) = axis.survey(values, true)
        worst, moved, plateau = largest[0], largest[1], largest[2 if self.quadratic else 0]
        falling, patience = (0.5, 1) if self.quadratic else (0.9, 4)

        count = iterations.astype(worst.dtype)

        def follow(level: Array, least: Array, fell: Array) -> tuple[Array, Array]:
            """The smallest level so far, and the iteration in which it last fell much."""
            smallest = jnp.where(least < 0, jnp.inf, jnp.minimum(level, least))
            falls = jnp.isfinite(smallest) & (level <= smallest) & (smallest <= falling * least)
            return smallest, jnp.where(falls, count, fell)

        levels = largest[-1] if eps.ndim else worst / eps, moved
        before = members(last.history, 4)
        least, fell = zip(*map(follow, levels, before[:2], before[2:]), strict=True)
        history = group(*least, *fell)
        residuals_fell, updates_fell = members(history, 4)[2:]
        stagnates = (plateau <= STAGNATION * coarsest) & (count - residuals_fell >= patience)
        if self.quadratic:
            rests = (moved <= self._rest) & (plateau <= ROUNDING * self._rest)
            last_fell = jnp.maximum(residuals_fell, updates_fell)
            stagnates |= rests & (count - last_fell >= PLATEAU)
        return Convergence(
            worst=worst,
            history=history,
            update_norm=norm,
            contraction=contraction,
            converged=jnp.where(stagnates, any_close, close),
            same=same,
            finite=finite_states,
        )

    def within_tolerance(self, states: Array, origin: Array, update: Array) -> Array:
        """The number of states from the start whose residuals are within the user's tolerance.

        They are those that have changed by less, and the next one: its residual is that of the
        linearisation, for the change of the state before it. This is known before the step is
        applied to them, so a window can move on at once. int32; 0 if the user has given no
        tolerance.

        Args:
            states: ``[L, *batch, w]``, the new iterate.
            origin: the same shape: the state before each step.
            update: the same shape: the size of its change.
        """
        if not self.is_given:
            return jnp.int32(0)
        small = update <= self.atol + (self.rtol or 0.0) * sizes(states, origin)[0]
        count: Array = LOCAL.survey([], [small & jnp.isfinite(states)])[1][0]
        return jnp.minimum(count + jnp.int32(1), jnp.int32(len(states)))

    def is_plateau(self, worst: Array) -> Array:
        """Whether an iteration that has ended at this residual was stopped by such products."""
        if self.is_given or not self.own_rounding:
            return jnp.zeros((), bool)
        return worst > STAGNATION * max(eps for _, eps in self.eps)

    @property
    def _rest(self) -> float:
        """The update of Newton's method below which it may stand still."""
        coarsest = max(eps for _, eps in self.eps)
        return max(coarsest**0.5, ROUNDING * self.own_rounding, self.rtol or 0.0)

    @property
    def is_given(self) -> bool:
        """Whether the user has given a tolerance."""
        return self.rtol is not None or not isinstance(self.atol, float) or self.atol > 0

    def _units(self, like: Array) -> np.ndarray:
        """``eps``: a number, or one for each entry, ``[1, .., 1, w]``."""
        entries, eps = zip(*self.eps, strict=True)
        if len(set(eps)) == 1:
            return np.asarray(eps[0], like.dtype)
        return np.repeat(eps, entries).astype(like.dtype).reshape((*(1,) * (like.ndim - 1), -1))

    def _denoised(
        self, norm: Array, last: Convergence, axis: ChainAxis
    ) -> tuple[Array, Array, Array]:
        """Update norms without rounding, the contraction factor to store, and the current one."""
        steps = jnp.sqrt(axis.index(len(norm)).astype(norm.dtype))
        steps = jnp.broadcast_to(steps.reshape((-1, *(1,) * (norm.ndim - 1))), norm.shape)
        clear = norm > NOISE * self.working * (1 + steps)
        # `jax.debug_nans` checks every value: no NaN even where it is not selected.
        has_last = jnp.isfinite(last.update_norm)
        moves = has_last & (last.update_norm > 0)
        ratio = jnp.where(moves, norm / jnp.where(moves, last.update_norm, 1), jnp.inf)
        contraction = jnp.where(clear, ratio, last.contraction)
        known = contraction < 1
        expected = jnp.where(known, contraction, 0) * jnp.where(has_last, last.update_norm, 0)
        keeps = clear | ~known | ~has_last
        denoised = jnp.where(keeps, norm, jnp.minimum(norm, expected))
        return denoised, contraction, jnp.where(known, contraction, ratio)

    def _is_small(self, norm: Array, contraction: Array) -> Array:
        """Whether the remaining change is at rounding level."""
        shrinks = (contraction < 1) & jnp.isfinite(norm)
        product = jnp.where(shrinks, norm, 0) * jnp.where(shrinks, contraction, 0)
        to_come = product / jnp.where(shrinks, 1 - contraction, 1)
        limit = max(self.rounding * self.working, self.rtol or 0.0)
        at_once = max(NOISE * self.working, self.rtol or 0.0)
        return (norm <= at_once) | (shrinks & (to_come <= limit))


def group(*numbers: Array) -> tuple[Array, ...]:
    """Numbers of one dtype.

    On a CPU they are one array, which one kernel writes: each costs time, and more to compile. A
    GPU's compiler makes one kernel of operations on single numbers, if each is made of the last; of
    arrays not.
    """
    return numbers if target().launches else (jnp.stack(numbers),)


def members(numbers: tuple[Array, ...], count: int) -> tuple[Array, ...]:
    """The ``count`` numbers of a `group`."""
    return numbers if len(numbers) == count else tuple(numbers[0])


def _over(values: Array, size: Array) -> Array:
    """``values / size``; the values themselves where the size is zero."""
    return jnp.where(values > 0, values / jnp.where(size > 0, size, 1), 0)


def sizes(value: Array, origin: Array, axis: ChainAxis = LOCAL) -> tuple[Array, Array]:
    """`usual_sizes`: the size of an entry is its magnitude before and after the step."""
    return usual_sizes(jnp.maximum(jnp.abs(value), jnp.abs(origin)), axis)
