"""The state of the loop of Newton's method, and how far it has come."""

from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from deeppcr.newton.convergence import Convergence
from deeppcr.newton.damping import Trial
from deeppcr.newton.window import Window


class Own(NamedTuple):
    """The states of a trust region, the sizes of the entries, and of acceleration; () if none."""

    sizes: Any
    history: Any


class Iterate(NamedTuple):
    """The state of the loop.

    Attributes:
        iterations: int32, the number of trips of the loop. Below 0 before the initial trajectory
            has been tested: see `takes_value`.
        states: ``[W, *batch, w]``, those of the window.
        value: ``f`` applied to every state of the iterate: one step closer to the answer, and
            rounded as the user's own program rounds. Before the first trip, the guess.
        convergence: of the states.
        window: the steps that are solved at once.
        damping: a `Trial` if the damping is "auto", else ().
        own: the states of damping and acceleration.
        residuals: one more than iterations, that of the guess in the second place; empty unless
            recorded.
        reported: int32, the number of converged states reported to the user last: an estimate of
            what has converged may be taken back, a report may not.
    """

    iterations: Array
    states: Array
    value: Array
    convergence: Convergence
    window: Window
    damping: Any
    own: Own
    residuals: Array
    reported: Array

    @property
    def counted(self) -> Array:
        """The number of iterations of Newton's method, without those in vain: int32."""
        is_auto = isinstance(self.damping, Trial)
        return self.iterations - self.damping.moves if is_auto else self.iterations

    @property
    def is_damped(self) -> Array | bool:
        """Whether the trip is one of the damping that takes `value`: bool."""
        return isinstance(self.damping, Trial) and self.damping.takes_value

    @property
    def takes_value(self) -> Array | bool:
        """Whether the next states are those in ``value``, and not Newton's: bool.

        So it is in the first trips, which apply the step to the guess, and test what comes out.
        """
        return (self.iterations < 0) | self.is_damped

    @property
    def is_due(self) -> Array:
        """Whether the damping, a `Trial`, decides before the next trip: bool."""
        fell = self.convergence.residual_fell
        stalled = self.counted - fell.astype(jnp.int32)
        due: Array = self.damping.is_due(self.iterations, stalled)
        return due


class Progress(NamedTuple):
    """How far an iterate has come. Computed where it is needed: the loop carries less.

    Attributes:
        prefix: int32, the number of converged states from the start of the chain.
        exact: int32, the number of them that equal the sequential program's to the last bit.
        stuck: bool, the state after them is not finite, and no iteration changes that.
        worst: the largest residual of what would be returned, relative to the size of the entry.
    """

    prefix: Array
    exact: Array
    stuck: Array
    worst: Array

    @classmethod
    def of(cls, now: Iterate, total: int) -> Self:
        """The progress of an iterate; ``total``: the number of steps that are solved at once."""
        found, start, known = now.convergence, now.window.start, now.window.known
        follows = start <= known
        # Exact to the last bit: the states that ``f`` reproduces, and the one after them.
        reached = jnp.minimum(found.same + jnp.int32(1), jnp.int32(total))
        right = jnp.where(follows, jnp.minimum(reached, found.finite), 0)
        # The step makes it of a state that is right, and so does every later iteration.
        known_to_be = (found.finite <= found.converged) | (follows & (found.finite <= found.same))
        exact = jnp.where(follows, start + reached, known)
        # ``value`` is returned: if all states but the last are right, so is all of it.
        is_exact = (exact - start >= total) & (found.finite >= total)
        return cls(
            prefix=start + jnp.maximum(found.converged, right),
            exact=exact,
            stuck=(found.finite < total) & known_to_be,
            worst=jnp.where(is_exact, 0, found.worst),
        )
