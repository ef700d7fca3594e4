"""Plain iterations of Newton's method, and a trust region where these get nowhere: damping="auto".

The trust region here has no solve of its own to compile. It clips an update D of
Newton's method step by step, and applies f once more to all states (a Jacobi iteration), which maps
them back to the range of the step:

    Z_l <- f(Z_{l-1} + t_{l-1} D_{l-1}),    t_l = 1 / sqrt(1 + (|D_l| / (radius s))^2),

with the size ``s`` of the states. So a damped iteration is three trips of the loop: Newton's, one
that moves to the clipped states, and Jacobi's. All three linearise, solve and evaluate, because
the body of the loop is the one of plain iterations, and what a trip does is told by data: the last
two discard the solution for ``value``, states that are known already. So a damped iteration takes
as long as three plain ones, although it counts as one. In L + 1 trips, not iterations, every chain
converges. What comes next is decided between trips, outside of the loop of plain iterations.
"""

# Not the default: programs compile 1.4 to 1.5 times as long (CPU, jax 0.10.2), a third of it for
# the nested loops, the rest for some ten small kernels of `Trial.decide`. Plain iterations take
# 1.00 to 1.06 times as long. Clipped updates take about as many iterations as those of
# `TrustRegion`, if the region is half as large; without the Jacobi iteration up to 4 times as many.

from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.newton.damping import TrustRegion, largest, shrinkage

PATIENCE = 8  # plain iterations without progress, after which a trust region is tried
TRIAL = 16  # damped iterations after which so many states must have converged from the start ...
SPEED = 4  # ... that all do within the budget, at this many times their speed
NEVER = 2**30

REGION = TrustRegion(0.5)


class Trial(NamedTuple):
    """The state of the damping, between two trips of the loop.

    Attributes:
        begun: int32, the number of trips before the trial of a trust region. The kinds of its trips
            alternate: to the states in ``value``, Jacobi's, Newton's.
        ended: int32, the number of trips when it had been in vain. The next one goes back.
        decided: int32, the number of trips before the last decision.
        sizes: of the entries, ``[*batch, w]``.
        kept: ``[2, L, *batch, w]``: the states before Newton's trip, and the plain iterate before
            the trial, to go back to.
    """

    begun: Array
    ended: Array
    decided: Array
    sizes: Array
    kept: Array

    @classmethod
    def begin(cls, states: Array) -> Self:
        """Before the first iteration, from ``states: [L, *batch, w]``."""
        never = jnp.int32(NEVER)
        kept = jnp.zeros((2, *states.shape), states.dtype)
        return cls(never, never, never, jnp.zeros_like(states[0]), kept)

    def takes_value(self, trips: Array) -> Array:
        """Whether the next states are those in ``value``, and not Newton's: bool."""
        is_newton = lax.rem(trips - self.begun, jnp.int32(3)) == 2
        return self._is_tried(trips) & ~is_newton | (trips == self.ended)

    def iterations(self, trips: Array) -> Array:
        """The number of iterations in so many trips: of three in the trial, one is Newton's."""
        tried = jnp.maximum(jnp.minimum(trips, self.ended) - self.begun, 0)
        back = (trips > self.ended).astype(jnp.int32)
        return trips - (tried - lax.div(tried, jnp.int32(3))) - back

    def spent(self, trips: Array) -> Array:
        """The number of iterations in vain, which are not counted in the budget."""
        tried = lax.div(self.ended - self.begun, jnp.int32(3))
        return jnp.where(trips > self.ended, tried, 0)

    def is_due(self, trips: Array, stalled: Array, left: Array) -> Array:
        """Whether to decide before the next trip: bool.

        Args:
            trips: int32, of the loop.
            stalled: int32, the number of iterations since the largest residual fell.
            left: int32, the number of iterations that are left in the budget.
        """
        enters = (self.begun == NEVER) & (stalled >= PATIENCE) & (left > PATIENCE)
        return (enters | self._is_tried(trips)) & (trips != self.decided)

    def decide(
        self,
        states: Array,
        value: Array,
        guess: Array,
        exact: Array,
        trips: Array,
        prefix: Array,
        remaining: Array,
        left: Array,
        axis: ChainAxis = LOCAL,
    ) -> tuple[Array, Self]:
        """What the next trip does.

        Args:
            states: ``[L, *batch, w]``.
            value: f of every state, ``[L, *batch, w]``.
            guess: ``[L, *batch, w]``, where to start from.
            exact: bool ``[L]``, whether a state is exact.
            trips: int32, of the loop.
            prefix: int32, the number of converged states from the start of the chain.
            remaining: int32, the number of states after them.
            left: int32, the number of iterations that are left in the budget.
            axis: the chain axis.

        Returns:
            the value for the next trip, and the state of the damping.
        """
        begins, made = self.begun == NEVER, trips - self.begun
        kind = lax.rem(made, jnp.int32(3))
        newton = ~begins & (kind == 0)
        is_slow = (made == 3 * TRIAL) & (SPEED * prefix * left < TRIAL * remaining)
        fails = newton & (is_slow | (left <= 1))
        known = exact.reshape((-1, *(1,) * (states.ndim - 1)))
        # The guess and f of it tell the sizes of entries, and so do states that are known.
        seen = jnp.where((made == 1) | known, jnp.maximum(jnp.abs(states), jnp.abs(value)), 0)
        sizes = jnp.maximum(self.sizes, axis.largest(largest(seen)))
        # An update that is not finite has been discarded, and is 0.
        origin, saved = self.kept
        update = states - origin
        clipped = origin + shrinkage(update / REGION.unit(sizes))[..., None] * update
        following = jnp.where(newton, clipped, jnp.where(jnp.isfinite(value), value, states))
        following = jnp.where(begins, guess, jnp.where(fails, saved, following))
        keeps = jnp.stack([kind == 2, begins]).reshape(2, *(1,) * states.ndim)
        return jnp.where(known, value, following), self._replace(
            begun=jnp.where(begins, trips, self.begun),
            ended=jnp.where(fails, trips, self.ended),
            decided=trips,
            sizes=sizes,
            kept=jnp.where(keeps, states, self.kept),
        )

    def _is_tried(self, trips: Array) -> Array:
        """Whether a trust region is being tried: bool."""
        return (self.begun <= trips) & (trips < self.ended)
