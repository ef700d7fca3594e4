"""The state of the loop of Newton's method: the iterate in its window, and how far it has come.

The window slides along the chain as its first states converge. The solve holds the blocks of the
window, and the trajectory is its only array of L steps. A window of L steps never moves.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.newton.convergence import Convergence


class Window(NamedTuple):
    """The steps that are solved at once.

    Attributes:
        start: int32, the index of the first of them.
        entry: ``[*batch, w]``, the state before it.
        known: int32, the number of states from the start of the chain that equal the sequential
            program's to the last bit, when the window moved last.
        whole: ``[L, *batch, w]``, all states; empty if the window is the chain.
    """

    start: Array
    entry: Array
    known: Array
    whole: Array

    @classmethod
    def begin(cls, entry: Array, first: Array, size: int, length: int) -> Self:
        """At the start of a chain of ``length`` steps.

        Args:
            entry: the initial state.
            first: the initial trajectory of ``length`` states, or of the first ``size`` of them.
            size: the steps of the window.
            length: L.
        """
        whole = jnp.zeros_like(first[:0])
        if size < length:
            unknown = jnp.zeros((length - len(first), *first.shape[1:]), first.dtype)
            whole = jnp.concatenate([first, unknown])
        return cls(jnp.int32(0), entry, jnp.int32(0), whole)

    def all_states(self, states: Array) -> Array:
        """The states of the chain, from those of the window."""
        if not self.whole.size:
            return states
        return lax.dynamic_update_slice_in_dim(self.whole, states, self.start, 0)

    def moved(self, start: Array, found: Array, known: Array) -> "Window":
        """The window from ``start`` on, with the states ``found`` in this one."""
        distance = start - self.start
        last = lax.dynamic_index_in_dim(found, jnp.maximum(distance - 1, 0), keepdims=False)
        entry = jnp.where(distance > 0, last, self.entry)
        return Window(start, entry, known, self.all_states(found))


def forward(tree: Any, distance: Array) -> Any:
    """Arrays ``[W, ...]`` of a window that has moved; its last ``distance`` steps are new."""
    return jax.tree.map(lambda leaf: jnp.roll(leaf, -distance, axis=0), tree)


class Iterate(NamedTuple):
    """The state of the loop.

    Attributes:
        iterations: int32, the number of trips of the loop. Below 0 before the initial trajectory
            has been tested: the first trips apply the step to the guess, and test what comes out.
        states: ``[W, *batch, w]``, those of the window.
        value: ``f`` applied to every state of the iterate: one step closer to the answer, and
            rounded as the user's own program rounds. Before the first trip, the guess.
        convergence: of the states.
        window: the steps that are solved at once.
        sizes: of the entries, ``[*batch, w]``, for a trust region; else ().
        history: of the iterates, for acceleration; else ().
        residuals: one more than iterations, that of the guess in the second place; empty unless
            recorded.
        reported: int32, the number of converged states reported to the user last. The
            estimate may fall; the reported count must not.
    """

    iterations: Array
    states: Array
    value: Array
    convergence: Convergence
    window: Window
    sizes: Any
    history: Any
    residuals: Array
    reported: Array


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
