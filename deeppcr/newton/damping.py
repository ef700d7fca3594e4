"""A trust region, for chains that amplify differences.

An update ``D = Y - Z`` of Newton's method solves ``D_l = A_l D_{l-1} + e_l``, where
``e_l = f(Z_{l-1}) - Z_l`` is the residual. Far from the solution, where the chain amplifies
differences, D grows exponentially along the chain. It overflows, or leaves the region in which the
linearisation holds. A trust region keeps every update within the size ``s`` of the states. Clipping
D is not enough, because later steps still propagate the update before clipping. So the growth
itself is limited,

    D_l = g_l A_l D_{l-1} + e_l,    g_l = min(1, t_l / t_{l-1}),
    t_l = 1 / sqrt(1 + (|D_l| / (radius s))^2),

with the t of a first, unlimited solve. This is a quasi-Newton method with the same linear
recurrence: its Jacobians are scaled down where the unlimited update grows. Near the solution
``t = 1 - O(|D|^2)``, and the method is Newton's, with its quadratic convergence. After the update
the step is applied twice to all states (Jacobi iterations), which maps them back to the range of
the step: with one, Metropolis chains of 10,000 steps take 1.2 times as many iterations.

In trials it was preferred to Levenberg-Marquardt by a Kalman filter and smoother with fixed damping
(ELK, Gonzalez et al., *Towards scalable and stable parallelization of nonlinear RNNs*, NeurIPS
2024), to Jacobians scaled down or clipped in norm, and to updates clipped as a whole. `python -m
experiments iterations --parts damping` compares it with undamped Newton.

**damping="auto"** takes plain iterations, and a trust region where these get nowhere. To compile no
solve of its own, that region clips the plain update, ``Z_l <- Z_l + t_l D_l``, and is half as
large. A damped iteration is four trips of the loop: Newton's, one that moves to the clipped states,
and two of Jacobi. The last three take ``value``, states that are known already. On a CPU they do
not linearise and solve; elsewhere, where a branch costs a wait of the host, they discard the
solution. So a damped iteration takes up to as long as four plain ones, although it counts as one.
In L + 1 trips, not iterations, every chain converges. What comes next is decided between trips,
outside of the loop of plain iterations. In that loop the damping costs a comparison of numbers and
selections by one of them.

The trial of the trust region ends where it promises nothing: if few states have converged from the
start, and few residuals are small anywhere. A chain that forgets its past converges in many places
at once, long before its first states have.
"""

# Clipped updates take 0.6 to 0.9 times the iterations on Metropolis chains, maps and ODEs, but
# 1.3 to 2.5 times as many on trained GRUs. One Jacobi iteration instead of two loses Metropolis
# chains and logistic maps, three take more on maps and trained GRUs, none up to 4 times as many.

import dataclasses
from numbers import Real
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import ChainAxis
from deeppcr.checks import describe
from deeppcr.linear import Blocks, LinearSolver

SWEEPS = 2  # Jacobi iterations after each update
PATIENCE = 6  # plain iterations in which the residual has not fallen, and between two decisions
TRIAL = 16  # damped iterations after which so many states must have converged from the start ...
SPEED = 4  # ... that all do within the budget, at this many times their speed
CLOSE = 1e-3  # and otherwise half of the residuals be as small, relative to the trust region


@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """Limit the update of every step to the size of the states.

    For chains that amplify differences, whose iterates overflow or diverge without it.

    Attributes:
        radius: float > 0, the size of the trust region relative to that of each entry of the state
            (dimensionless). The size of an entry is its largest magnitude in the initial trajectory
            or in a converged state.

    Raises:
        ValueError: ``radius`` is not positive.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: 3.6 * z * (1 - z), length=100)
        >>> newton = deeppcr.Newton(damping=deeppcr.TrustRegion())
        >>> bool(deeppcr.solve(chain, jnp.array(0.3), method=newton).converged)
        True
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.radius, Real) and self.radius > 0):
            raise ValueError(f"radius is {describe(self.radius)}, expected a number > 0.")

    def limited(
        self,
        solver: LinearSolver,
        blocks: Blocks,
        states: Array,
        value: Array,
        sizes: Array,
        axis: ChainAxis,
    ) -> Array:
        """The next states, from ``states`` and ``f`` of those before them, ``[L, *batch, w]``."""
        # A Jacobian entry that is not finite says nothing about how differences propagate.
        blocks, unit = jax.tree.map(_finite, blocks), self.unit(sizes)
        residual = value - states
        is_finite = jnp.isfinite(residual).all(axis=-1)[..., None]
        residual = jnp.where(is_finite, residual, jnp.zeros_like(residual))
        residual = residual * shrinkage(residual / unit)[..., None]
        limit = shrinkage(solver.solve_unguarded(blocks, residual) / unit)
        before = axis.before(jnp.ones_like(limit[0]), limit)
        gain = jnp.where(before > 0, jnp.minimum(1, limit / jnp.where(before > 0, before, 1)), 0)

        def scaled(leaf: Array) -> Array:  # a block that examples share has the smallest of gains
            if not leaf.size:
                return leaf
            shared = gain.min(axis=tuple(range(leaf.ndim, gain.ndim)), initial=jnp.inf)
            return leaf * shared.reshape((*shared.shape, *(1,) * (leaf.ndim - shared.ndim)))

        update = solver.solve_unguarded(jax.tree.map(scaled, blocks), residual)
        return states + _finite(update) * shrinkage(update / unit)[..., None]

    def clip(self, states: Array, proposed: Array, sizes: Array) -> Array:
        """``proposed``, within the trust region around ``states``: both ``[L, *batch, w]``.

        Where an update is not finite, the state stays. ``sizes``: of the entries, ``[*batch, w]``.
        """
        update = proposed - states
        return states + shrinkage(update / self.unit(sizes))[..., None] * _finite(update)

    def unit(self, sizes: Array) -> Array:
        """The size of the trust region, ``[1, *batch, w]``."""
        return (jnp.where(sizes > 0, sizes, jnp.ones_like(sizes)) * self.radius)[None]


REGION = TrustRegion(0.5)  # of "auto"

# The kinds of trips: plain ones before and after the trial, Newton's in it, and, from MOVE on,
# those that take the states in `value`: clipped, or of the first or second Jacobi iteration.
# BEHIND: what follows each, if nothing else is decided.
PLAIN, DONE, NEWTON, MOVE, JACOBI, SECOND, BACK = range(7)
BEHIND = PLAIN, DONE, MOVE, JACOBI, SECOND, NEWTON, DONE


class Trial(NamedTuple):
    """The state of the damping. It changes between two trips of the loop.

    Attributes:
        numbers: int32 ``[4]``, as the properties.
        sizes: of the entries, ``[*batch, w]``.
        kept: ``[2, L, *batch, w]``: the states before Newton's trip, and the plain iterate before
            the trial, to go back to.
    """

    numbers: Array
    sizes: Array
    kept: Array

    @classmethod
    def begin(cls, states: Array) -> Self:
        """Before the first trip; ``states``: ``[L, *batch, w]``, the guess."""
        # Of what a program can set at its start XLA's CPU client leaves half to another thread, if
        # it is more than eight arrays: a short solve then takes 1.1 to 1.3 times as long (jax
        # 0.10.2). So the numbers are one array.
        numbers = jnp.full(4, PLAIN, jnp.int32)
        return cls(numbers, largest(states[:1]), jnp.stack([states, states]))

    @property
    def kind(self) -> Array:
        """What the next trip is; after it, what it was."""
        return self.numbers[0]

    @property
    def decided(self) -> Array:
        """The number of trips before the last decision."""
        return self.numbers[1]

    @property
    def moves(self) -> Array:
        """The number of trips that are no iterations of Newton's method, or were in vain."""
        return self.numbers[2]

    @property
    def begun(self) -> Array:
        """The number of iterations before the trial of a trust region."""
        return self.numbers[3]

    @property
    def takes_value(self) -> Array:
        """Whether the next states are those in ``value``, and not Newton's: bool."""
        return self.kind >= MOVE

    @property
    def goes_back(self) -> Array:
        """Whether the next trip goes back to the iterate before the trial: bool."""
        return self.kind == BACK

    def is_due(self, trips: Array, stalled: Array) -> Array:
        """Whether to decide before the next trip: bool.

        Args:
            trips: int32, of the loop.
            stalled: int32, the number of iterations since the largest residual fell.
        """
        since = trips - self.decided
        stalls = (self.kind == PLAIN) & (stalled >= PATIENCE) & (since >= PATIENCE)
        return stalls | (self.kind >= NEWTON) & (since > 0)

    def decide(
        self, now: Any, known: Array, reached: Any, guess: Array, budget: int, axis: ChainAxis
    ) -> tuple[Array, "Trial"]:
        """What the next trip does.

        Args:
            now: the `Iterate`.
            known: bool ``[L]``, whether a state is exact.
            reached: its `Progress`.
            guess: ``[L, *batch, w]``, where to start from.
            budget: the number of iterations.
            axis: the chain axis.

        Returns:
            the value for the next trip, and the state of the damping.
        """
        states, value, trips = now.states, now.value, now.iterations
        prefix, remaining = reached.prefix, axis.total(len(states)) - reached.prefix
        count = trips - self.moves
        left = budget - count
        is_plain, made = self.kind == PLAIN, count - self.begun
        # In float32, as products of integers overflow for long chains.
        done, needed = _product(prefix, left), _product(remaining, made)
        begins = is_plain & (done < needed) & (left > PATIENCE)
        is_close = jnp.abs(value - states) <= CLOSE * REGION.unit(self.sizes)
        wanders = axis.mean(is_close.mean(dtype=jnp.float32)) < 0.5
        is_slow = (SPEED * done < needed) & wanders & (made == TRIAL)
        fails = (self.kind == NEWTON) & (is_slow | (left <= 1))
        kind = jnp.where(fails, BACK, jnp.array(BEHIND, jnp.int32)[self.kind])
        kind = jnp.where(begins, MOVE, kind)
        known = known.reshape((-1, *(1,) * (states.ndim - 1)))
        # The guess and f of it tell the sizes of entries, and so do states that are known.
        is_guess = (self.kind == MOVE) & (made == 0)
        seen = jnp.where(is_guess, jnp.maximum(jnp.abs(states), jnp.abs(value)), 0)
        seen = jnp.where(known, jnp.abs(value), seen)  # not the last of these states
        sizes = jnp.maximum(self.sizes, axis.largest(largest(seen)))
        origin, saved = self.kept
        clipped = REGION.clip(origin, states, sizes)
        following = jnp.where(jnp.isfinite(value) | (kind < NEWTON), value, states)
        following = jnp.where(self.kind == NEWTON, clipped, following)
        following = jnp.where(begins, guess, jnp.where(fails, saved, following))
        keeps = jnp.stack([self.kind == SECOND, begins]).reshape(2, *(1,) * states.ndim)
        moves = self.moves + (kind >= MOVE).astype(jnp.int32) + jnp.where(fails, made, 0)
        begun = jnp.where(begins, count, self.begun)
        numbers = jnp.stack([kind, trips, moves, begun])
        kept = jnp.where(keeps, states, self.kept)
        return jnp.where(known, value, following), Trial(numbers, sizes, kept)


def _product(one: Array, other: Array) -> Array:
    return one.astype(jnp.float32) * other.astype(jnp.float32)


def _finite(values: Array) -> Array:
    """The values; 0 where they are not finite."""
    return jnp.where(jnp.isfinite(values), values, jnp.zeros_like(values))


def shrinkage(update: Array) -> Array:
    """t, ``[L, *batch]``; 0 for an update that is not finite."""
    size = jnp.abs(update).max(axis=-1, initial=0)
    return jnp.where(
        jnp.isfinite(size), lax.rsqrt(1 + jnp.square(jnp.where(jnp.isfinite(size), size, 0))), 0
    )


def largest(states: Array) -> Array:
    """The largest finite value of every entry along the chain."""
    return jnp.abs(_finite(states)).max(axis=0, initial=0)
