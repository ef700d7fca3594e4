"""`Across`: what concerns several steps of a chain, for one that is here as a whole."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array, lax


@dataclasses.dataclass(frozen=True)
class Across:
    """The whole chain is here. Arrays carry it on axis 0; a recurrence that runs ``backwards`` starts at their end."""

    backwards: bool = False

    @property
    def size(self) -> int:
        """How many parts there are."""
        return 1

    @property
    def rank(self) -> int | Array:
        """How many parts come before the one that is here."""
        return 0

    @property
    def reversed(self) -> Self:
        """The same for a recurrence that runs the other way."""
        return dataclasses.replace(self, backwards=not self.backwards)

    def total(self, length: int) -> int:
        """How many steps all parts have together, where arrays here have ``length``."""
        return length

    def before(self, entry: Array, states: Array) -> Array:
        """The state before each step: ``entry`` before the first of the chain."""
        return jnp.concatenate(
            [states[1:], entry[None]] if self.backwards else [entry[None], states[:-1]]
        )

    def index(self, length: int) -> Array:
        """The places of the ``length`` steps here in the whole chain, counted from 0: int32."""
        place = lax.iota(jnp.int32, length)
        return length - 1 - place if self.backwards else place

    def leading(self, *true: Array) -> list[Array]:
        """Of each array, how many steps from the start are true in all their entries: int32."""
        counts = []
        for each in true:  # the first place that is not true: one reduction, where a running product would be several
            length = len(each)
            place = Across.index(self, length).reshape((-1, *(1,) * (each.ndim - 1)))
            counts.append(jnp.where(each, jnp.int32(length), place).min(initial=length))
        return counts

    def last(self, states: Array) -> Array:
        """The last state of the chain."""
        return states[0 if self.backwards else -1]

    def set_first(self, x: Array, entry: Array) -> Array:
        """``x`` with ``entry`` at the first step of the chain."""
        return x.at[self._start].set(entry)

    def of_first(self, tree: Any) -> Any:
        """Of what each part has, what the first one has."""
        return tree

    def largest(self, x: Array) -> Array:
        """Entry by entry, the largest of what the parts have."""
        return x

    def mean(self, x: Array) -> Array:
        """Entry by entry, the mean of what the parts have."""
        return x

    def cummax(self, x: Array) -> Array:
        """The largest up to each step."""
        return lax.cummax(x, axis=0, reverse=self.backwards)

    def cumsum(self, x: Array, axis: int = 0) -> Array:
        """The sum up to each step, the chain being on ``axis``."""
        return lax.cumsum(x, axis=axis, reverse=self.backwards)

    def in_turn(
        self, work: Callable[[Any, Any], tuple[Any, Any]], entry: Any, own: Any
    ) -> tuple[Any, Any]:
        """Part after part: ``work(entry, own) -> (exit, new)``, each entered with the exit of the one before.

        Args:
            work: what is done with a part; it talks to no other.
            entry: what the first part is entered with: a pytree.
            own: what a part has of its own; ``new`` has the same structure, shapes and dtypes. None for nothing yet.

        Returns:
            the exit of the last part, and what has become of the own.
        """
        return work(entry, own)

    def each(self, f: Callable[..., Any], *parts: Any, shared: Any) -> Any:
        """``f(*parts, shared)``, where ``parts`` and the result carry the chain, and ``shared`` is the same for all steps."""
        return f(*parts, shared)

    @property
    def _start(self) -> int:
        """Where the first step here is."""
        return -1 if self.backwards else 0

    def _last(self, tree: Any) -> Any:
        """What the last step here has."""
        end = 0 if self.backwards else -1
        return jax.tree.map(lambda leaf: leaf[end], tree)


HERE = Across()
