"""A window that slides along the chain as its first states converge.

The solve holds the blocks of the window, and the trajectory is its only array of L steps. A window
of L steps never moves.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array, lax


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
