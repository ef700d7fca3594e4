"""The state of the loop of Newton's method, and how far it has come."""

from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from deeppcr.newton.auto_damping import Trial
from deeppcr.newton.convergence import Convergence


class Iterate(NamedTuple):
    """The state of the loop.

    Attributes:
        iterations: int32, the number of trips of the loop.
        start: int32, the index of the first step of the window.
        entry: the state before it.
        states: ``[W, *batch, w]``, the window.
        value: ``f`` applied to every state of the iterate: one step closer to the answer, and
            rounded as the user's own program rounds.
        convergence: of the states.
        known: int32, the number of states from the start of the chain that equal the sequential
            program's to the last bit, when the window moved last.
        whole: ``[L, *batch, w]``, all states; empty if the window is the chain.
        damping: its state; a `Trial` if it is "auto".
        history: the state of the acceleration.
        residuals: by iteration, that of the guess first; empty unless recorded.
        reported: int32, the number of converged states reported to the user last: an estimate of
            what has converged may be taken back, a report may not.
    """

    iterations: Array
    start: Array
    entry: Array
    states: Array
    value: Array
    convergence: Convergence
    known: Array
    whole: Array
    damping: Any
    history: Any
    residuals: Array
    reported: Array

    @property
    def counted(self) -> Array:
        """The number of iterations of Newton's method, without those in vain: int32."""
        is_auto = isinstance(self.damping, Trial)
        return self.iterations - self.damping.moves if is_auto else self.iterations

    @property
    def takes_value(self) -> Array | bool:
        """Whether the next states are those in ``value``, and not Newton's: bool."""
        return isinstance(self.damping, Trial) and self.damping.takes_value

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
        found, follows = now.convergence, now.start <= now.known
        # Exact to the last bit: the states that ``f`` reproduces, and the one after them.
        reached = jnp.minimum(found.same + jnp.int32(1), jnp.int32(total))
        right = jnp.where(follows, jnp.minimum(reached, found.finite), 0)
        # The step makes it of a state that is right, and so does every later iteration.
        known_to_be = (found.finite <= found.converged) | (follows & (found.finite <= found.same))
        exact = jnp.where(follows, now.start + reached, now.known)
        # ``value`` is returned: if all states but the last are right, so is all of it.
        is_exact = (exact - now.start >= total) & (found.finite >= total)
        return cls(
            prefix=now.start + jnp.maximum(found.converged, right),
            exact=exact,
            stuck=(found.finite < total) & known_to_be,
            worst=jnp.where(is_exact, 0, found.worst),
        )
