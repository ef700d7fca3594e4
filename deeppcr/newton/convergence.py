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
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.linear import usual_sizes
from deeppcr.lower import unpack
from deeppcr.newton.iterate import Convergence, Stagnation
from deeppcr.solution import ROUNDING

NOISE_UNITS = 4  # units up to which an update is noise; sqrt(l) times as many at step l
# Units of the largest entry, below which a residual that stands still is rounding.
STAGNATION = 1000
PLATEAU = 4  # iterations in which neither residuals nor updates fall, at whatever level

# Iterations of Newton's method on chains that forget: of gated cells 4 to 6, of tanh layers 8, at
# any length (H100, jax 0.11.2, products in full precision).
USUAL = 6
# Iterations without exact Jacobians, in those with: a trained GRU takes 2.6 times as many, other
# chains 2 to 10.
QUASI = 3
# Of an affine step: one, and another that confirms it unless its blocks are seen to contract.
OF_AFFINE = 2


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
    usual = OF_AFFINE if is_affine else USUAL
    if not is_exact:
        usual = QUASI * USUAL
    return windows * min(usual, length + 1)


class Evaluation(NamedTuple):
    """An iterate, and the step applied to it: arrays ``[L, *batch, w]``.

    Attributes:
        value: the step applied to ``origin``.
        states: the iterate.
        origin: the state before each step.
        update: the size of the last change; inf before the first, and 0 if the residual alone
            tells.
    """

    value: Array
    states: Array
    origin: Array
    update: Array


class Change(NamedTuple):
    """The last update of an iterate, and what it is measured by: arrays ``[L, *batch, w]``.

    Attributes:
        relative: the update, relative to the size of the entry.
        size: the update itself, beyond the absolute tolerance.
        own: the size of the entries: see `sizes`.
        common: that of the states.
    """

    relative: Array
    size: Array
    own: Array
    common: Array


@dataclasses.dataclass(frozen=True)
class Criterion(ABC):
    """A convergence criterion: see `NewtonCriterion` and `ContractionCriterion`.

    Attributes:
        rtol: the tolerance on the residual relative to the size of the entry; None for rounding
            level.
        atol: the absolute tolerance on the residual, or ``[L, .., 1]``, one for each step.
        eps: one unit in the last place of 1 for each leaf of the state: ``(entries, eps)``.
    """

    rtol: float | None
    atol: float | Array
    eps: tuple[tuple[int, float], ...]

    FALLS: ClassVar[float] = 0.5  # what is smaller by this factor has fallen
    PATIENCE: ClassVar[int] = 1  # iterations without, after which a small residual is rounding
    OF_STATE: ClassVar[bool] = True  # whether small is relative to the state, or to the entry

    def __call__(
        self, now: Evaluation, iterations: Array, last: Convergence, axis: ChainAxis = LOCAL
    ) -> Convergence:
        """The convergence state of an iterate.

        Args:
            now: the iterate.
            iterations: int32, the number of iterations that have made it.
            last: the convergence state of the iterate before.
            axis: the chain axis, in the direction of the recurrence.
        """
        value, states, origin, update = now
        eps = self._units(value)
        defined = jnp.isfinite(value)
        finite = defined & jnp.isfinite(states)
        own, common = sizes(value, origin, axis)
        residual = jnp.where(finite, jnp.abs(value - states), jnp.inf)
        relative = _over(residual, own)
        update = jnp.maximum(update - self.atol, 0)
        changed = _over(update, own)
        change = Change(changed, update, own, common)
        settled, resting, norm, contraction = self._remaining(change, last, axis)
        if self.is_given:  # a state is right if its residual is, and so are the states before it
            right = jnp.ones((), bool)
            settled = axis.before(right, settled)
            resting = axis.before(right, resting)
        rtol = ROUNDING * eps if self.rtol is None else self.rtol
        small = residual <= self.atol + rtol * own

        # Count under both assumptions: whether residuals still fall is known once all are computed.
        values = [relative, changed]
        values += [_over(residual, common)] if self.OF_STATE else []
        values += [relative / eps] if eps.ndim else []  # leaves of several dtypes
        tests = [settled & finite & small, resting & finite, value == states, defined]
        largest, (close, still, same, finite_states) = axis.survey(values, tests)
        worst, moved, level = largest[0], largest[1], largest[2 if self.OF_STATE else 0]

        count = iterations.astype(worst.dtype)
        units = largest[-1] if eps.ndim else worst / eps
        before = Stagnation(*unpack(last.stagnation))
        stagnation = before.following(units, moved, count, self.FALLS)
        stands = self._stands(level, moved, Stagnation(*unpack(stagnation)), count)
        return Convergence(
            worst=worst,
            stagnation=stagnation,
            update_norm=norm,
            contraction=contraction,
            converged=jnp.where(stands, still, close),
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
        """Whether products of the step in low precision have stopped an iteration, at a residual.

        That of the states that it has ended with.
        """
        return jnp.zeros((), bool)

    @property
    def is_given(self) -> bool:
        """Whether the user has given a tolerance."""
        return self.rtol is not None or not isinstance(self.atol, float) or self.atol > 0

    @property
    def _coarsest(self) -> float:
        """The largest of the units."""
        return max(eps for _, eps in self.eps)

    def _units(self, like: Array) -> np.ndarray:
        """``eps``: a number, or one for each entry, ``[1, .., 1, w]``."""
        entries, eps = zip(*self.eps, strict=True)
        if len(set(eps)) == 1:
            return np.asarray(eps[0], like.dtype)
        return np.repeat(eps, entries).astype(like.dtype).reshape((*(1,) * (like.ndim - 1), -1))

    @abstractmethod
    def _remaining(
        self, change: Change, last: Convergence, axis: ChainAxis
    ) -> tuple[Array, Array, Array, Array]:
        """Where the remaining change is rounding, and the norm and contraction to store.

        Args:
            change: the last update.
            last: the convergence state of the iterate before.
            axis: the chain axis.

        Returns:
            bool ``[L, *batch, w or 1]``, where little is left to change; and where, if residuals
            stand still; then the next ``update_norm`` and ``contraction`` of a `Convergence`.
        """

    def _stands(self, level: Array, moved: Array, last: Stagnation, count: Array) -> Array:
        """Whether residuals or updates no longer fall.

        Args:
            level: the largest residual, relative to the state or the entry.
            moved: the largest update, relative to the entry.
            last: with this iteration.
            count: its number.
        """
        is_rounding = level <= STAGNATION * self._coarsest
        return is_rounding & (count - last.residual_fell >= self.PATIENCE)


@dataclasses.dataclass(frozen=True)
class NewtonCriterion(Criterion):
    """Newton's method squares its update: below the square root of rounding level it is the last.

    Attributes:
        own_rounding: the unit roundoff of products in the step, if that is larger; else 0.
    """

    own_rounding: float = 0.0

    def _remaining(
        self, change: Change, last: Convergence, axis: ChainAxis
    ) -> tuple[Array, Array, Array, Array]:
        most = np.maximum(np.sqrt(self._units(change.own)), self.rtol or 0.0)
        settled, resting = change.relative <= most, change.relative <= self._rest
        return settled, resting, last.update_norm, last.contraction

    def _stands(self, level: Array, moved: Array, last: Stagnation, count: Array) -> Array:
        stands = super()._stands(level, moved, last, count)
        rests = (moved <= self._rest) & (level <= ROUNDING * self._rest)
        last_fell = jnp.maximum(last.residual_fell, last.update_fell)
        return stands | rests & (count - last_fell >= PLATEAU)

    def is_plateau(self, worst: Array) -> Array:
        """See `Criterion`."""
        if self.is_given or not self.own_rounding:
            return super().is_plateau(worst)
        return worst > STAGNATION * self._coarsest

    @property
    def _rest(self) -> float:
        """The update below which it may stand still."""
        return max(self._coarsest**0.5, ROUNDING * self.own_rounding, self.rtol or 0.0)


@dataclasses.dataclass(frozen=True)
class ContractionCriterion(Criterion):
    """Any other iteration contracts its updates: those to come are a geometric series.

    Attributes:
        working: one unit in the last place of 1 in the dtype of the iterates.
        rounding: the number of units in the last place that count as rounding.
    """

    working: float
    rounding: float = ROUNDING

    FALLS = 0.9
    PATIENCE = 4
    OF_STATE = False

    def _remaining(
        self, change: Change, last: Convergence, axis: ChainAxis
    ) -> tuple[Array, Array, Array, Array]:
        _, update, own, common = change
        norms = [_over(update, size).max(axis=-1, initial=0) for size in (common, own)]
        so_far = axis.cummax(jnp.stack(norms, axis=-1))
        norm, contraction, current = self._denoised(so_far[..., 0], last, axis)
        # The update of an entry: the smaller of its own and, in its units, the state's.
        tiny = jnp.finfo(own.dtype).tiny
        share = jnp.where(own > 0, jnp.maximum(_over(own, common), tiny), 1)
        of_entry = jnp.minimum(so_far[..., 1], norm / share.min(axis=-1, initial=1))
        settled = self._is_small(of_entry, current)[..., None]
        return settled, settled, norm, contraction

    def _denoised(
        self, norm: Array, last: Convergence, axis: ChainAxis
    ) -> tuple[Array, Array, Array]:
        """Update norms without rounding, the contraction factor to store, and the current one."""
        steps = jnp.sqrt(axis.index(len(norm)).astype(norm.dtype))
        steps = jnp.broadcast_to(steps.reshape((-1, *(1,) * (norm.ndim - 1))), norm.shape)
        clear = norm > NOISE_UNITS * self.working * (1 + steps)
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
        at_once = max(NOISE_UNITS * self.working, self.rtol or 0.0)
        return (norm <= at_once) | (shrinks & (to_come <= limit))


def _over(values: Array, size: Array) -> Array:
    """``values / size``; the values themselves where the size is zero."""
    return jnp.where(values > 0, values / jnp.where(size > 0, size, 1), 0)


def sizes(value: Array, origin: Array, axis: ChainAxis = LOCAL) -> tuple[Array, Array]:
    """`usual_sizes`: the size of an entry is its magnitude before and after the step."""
    return usual_sizes(jnp.maximum(jnp.abs(value), jnp.abs(origin)), axis)
