"""`Devices`: what concerns several steps of a chain, inside `jax.shard_map`, where each device has one of P equal parts.

Device p has the p-th part. Running sums and maxima are taken of each part, then of the P results, which all devices are told.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.across.here import Across


@dataclasses.dataclass(frozen=True)
class Devices(Across):
    """One of ``count`` equal parts along the mesh axis ``axis``; see `Across`.

    ``places``: of several axes, the number that `jax.lax.ppermute` has for each device, which counts them in the mesh's order.
    """

    count: int = 1
    axis: str | tuple[str, ...] = ""
    places: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """See `Across`."""
        return self.count

    @property
    def rank(self) -> Array:
        """See `Across`: int32."""
        index = lax.axis_index(self.axis)
        return self.size - 1 - index if self.backwards else index

    def total(self, length: int) -> int:
        """See `Across`."""
        return length * self.size

    def shift(self, tree: Any, distance: int = 1) -> Any:
        """What the part ``distance`` before this one has; zeros where there is none."""
        place = self.places or range(self.size)
        ways = [(place[p], place[p + distance]) for p in range(self.size - distance)]
        if self.backwards:
            ways = [(there, here) for here, there in ways]
        return jax.tree.map(lambda leaf: lax.ppermute(leaf, self.axis, ways), tree)

    def before(self, entry: Array, states: Array) -> Array:
        """See `Across`."""
        return super().before(
            jnp.where(self.rank == 0, entry, self.shift(self._last(states))), states
        )

    def index(self, length: int) -> Array:
        """See `Across`."""
        return super().index(length) + self.rank * jnp.int32(length)

    def leading(self, *true: Array) -> list[Array]:
        """See `Across`."""
        counts = self._gathered(jnp.stack(super().leading(*true)))
        whole = (counts == jnp.array([[len(each) for each in true]], jnp.int32)).astype(jnp.int32)
        before = jnp.concatenate([jnp.ones_like(whole[:1]), lax.cumprod(whole)[:-1]])
        return list((counts * before).sum(axis=0, dtype=jnp.int32))

    def last(self, states: Array) -> Array:
        """See `Across`."""
        found: Array = self._of(self.size - 1, self._last(states))
        return found

    def set_first(self, x: Array, entry: Array) -> Array:
        """See `Across`."""
        return super().set_first(x, jnp.where(self.rank == 0, entry, x[self._start]))

    def of_first(self, tree: Any) -> Any:
        """See `Across`."""
        return self._of(0, tree)

    def largest(self, x: Array) -> Array:
        """See `Across`."""
        return lax.pmax(x, self.axis)

    def mean(self, x: Array) -> Array:
        """See `Across`."""
        return lax.pmean(x, self.axis)

    def cummax(self, x: Array) -> Array:
        """See `Across`."""
        here = super().cummax(x)
        return jnp.maximum(here, self._of_earlier(self._last(here), lax.cummax, -jnp.inf)[None])

    def cumsum(self, x: Array, axis: int = 0) -> Array:
        """See `Across`."""
        here = super().cumsum(x, axis)
        last = self._last(jnp.moveaxis(here, axis, 0))
        return here + jnp.expand_dims(self._of_earlier(last, lax.cumsum, 0.0), axis)

    def in_turn(
        self, work: Callable[[Any, Any], tuple[Any, Any]], entry: Any, own: Any
    ) -> tuple[Any, Any]:
        """See `Across`."""
        if own is None:  # what a device holds before its turn
            own = jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(work, entry, None)[1]
            )

        def turn(number: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
            carried, own = state
            mine = self.rank == number
            enters = mine & (number > 0)
            carried = jax.tree.map(
                lambda new, old: jnp.where(enters, new, old), self.shift(carried), carried
            )
            done: tuple[Any, Any] = lax.cond(
                mine, work, lambda entry, own: (entry, own), carried, own
            )
            return done

        carried, own = lax.fori_loop(0, self.size, turn, (entry, own))
        return self._of(self.size - 1, carried), own

    def _gathered(self, x: Array) -> Array:
        """What all parts have, that of the first one first."""
        everything = lax.all_gather(x, self.axis)
        return jnp.flip(everything, 0) if self.backwards else everything

    def _of_earlier(self, x: Array, cumulate: Callable[..., Array], nothing: float) -> Array:
        """What ``cumulate`` makes of what the parts before this one have."""
        begun = cumulate(self._gathered(x), axis=0)
        return jnp.where(
            self.rank == 0, jnp.full_like(x, nothing), begun[jnp.maximum(self.rank - 1, 0)]
        )

    def _of(self, rank: int, tree: Any) -> Any:
        """What one part has, on all devices."""
        return jax.tree.map(
            lambda x: lax.psum(jnp.where(self.rank == rank, x, jnp.zeros_like(x)), self.axis), tree
        )
