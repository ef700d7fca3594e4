"""`DeviceAxis`: operations along the chain inside `jax.shard_map`, where each device has one shard.

Device p has the p-th of P equal shards; on a descending axis the first shard is on the last device.
Running sums and maxima are computed in each shard, then over the P results on all devices.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.avals import like
from deeppcr.axis import ChainAxis


@dataclasses.dataclass(frozen=True)
class DeviceAxis(ChainAxis):
    """One of ``count`` equal shards along the mesh axis ``mesh_axis``; see `ChainAxis`.

    ``ordered``: several mesh axes in the order of the mesh, and ``numbers``, the number of each
    device in that order, as `jax.lax.ppermute` takes them. ``descending``: see `ChainSharding`.
    """

    count: int = 1
    mesh_axis: str | tuple[str, ...] = ""
    ordered: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    descending: bool = False

    @property
    def size(self) -> int:
        """See `ChainAxis`."""
        return self.count

    @property
    def rank(self) -> Array:
        """See `ChainAxis`: int32."""
        index = lax.axis_index(self.mesh_axis)
        return self.size - 1 - index if self._from_last_device else index

    def total(self, length: int) -> int:
        """See `ChainAxis`."""
        return length * self.size

    def shift(self, tree: Any, distance: int = 1) -> Any:
        """The value of the shard ``distance`` before this one; zeros where there is none."""
        numbers = self.numbers or range(self.size)
        pairs = [(numbers[p], numbers[p + distance]) for p in range(self.size - distance)]
        if self._from_last_device:
            pairs = [(target, source) for source, target in pairs]
        return jax.tree.map(lambda leaf: self._sent(leaf, pairs), tree)

    def in_order(self, arrays: list[Array]) -> list[Array]:
        """See `ChainAxis`: on a descending axis each shard goes to the device at the other end."""
        if not self.descending:
            return arrays
        numbers = tuple(self.numbers or range(self.size))
        pairs = list(zip(numbers, reversed(numbers), strict=True))
        return [self._sent(x, pairs) for x in arrays]

    def _sent(self, x: Array, pairs: list[tuple[int, int]]) -> Array:
        """Every shard on another device."""
        return lax.ppermute(x, self.ordered or self.mesh_axis, pairs)

    def before(self, entry: Array, states: Array) -> Array:
        """See `ChainAxis`."""
        entry = jnp.where(self.rank == 0, entry, self.shift(self._last(states)))
        return super().before(entry, states)

    def index(self, length: int) -> Array:
        """See `ChainAxis`."""
        return super().index(length) + self.rank * jnp.int32(length)

    def survey(self, values: Sequence[Array], true: Sequence[Array]) -> tuple[Any, Any]:
        """See `ChainAxis`."""
        largest, counts = super().survey(values, true)
        return lax.pmax(largest, self.mesh_axis), lax.pmin(counts, self.mesh_axis)

    def last(self, states: Array) -> Array:
        """See `ChainAxis`."""
        return self._of(self.size - 1, self._last(states))

    def set_first(self, x: Array, entry: Array) -> Array:
        """See `ChainAxis`."""
        return super().set_first(x, jnp.where(self.rank == 0, entry, x[self._start]))

    def of_first(self, tree: Any) -> Any:
        """See `ChainAxis`."""
        return self._of(0, tree)

    def largest(self, x: Array) -> Array:
        """See `ChainAxis`."""
        return lax.pmax(x, self.mesh_axis)

    def mean(self, x: Array) -> Array:
        """See `ChainAxis`."""
        return lax.pmean(x, self.mesh_axis)

    def cummax(self, x: Array) -> Array:
        """See `ChainAxis`."""
        local = super().cummax(x)
        return jnp.maximum(local, self._of_earlier(self._last(local), lax.cummax, -jnp.inf)[None])

    def cumsum(self, x: Array, axis: int = 0) -> Array:
        """See `ChainAxis`."""
        local = super().cumsum(x, axis)
        last = self._last(jnp.moveaxis(local, axis, 0))
        return local + jnp.expand_dims(self._of_earlier(last, lax.cumsum, 0.0), axis)

    def sequentially(
        self, work: Callable[[Any, Any], tuple[Any, Any]], entry: Any, own: Any
    ) -> tuple[Any, Any]:
        """See `ChainAxis`."""
        if own is None:  # a device holds zeros until its trip comes
            shapes = jax.eval_shape(work, entry, None)[1]
            own = jax.tree.map(lambda x: like(jnp.zeros(x.shape, x.dtype), x), shapes)

        def trip(number: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
            carried, own = state
            mine = self.rank == number
            enters = mine & (number > 0)
            carried = jax.tree.map(
                lambda new, old: jnp.where(enters, new, old), self.shift(carried), carried
            )
            return lax.cond(mine, work, lambda entry, own: (entry, own), carried, own)

        carried, own = lax.fori_loop(0, self.size, trip, (entry, own))
        return self._of(self.size - 1, carried), own

    @property
    def scan(self) -> Callable[..., tuple[Any, Any]]:
        """See `ChainAxis`."""
        along = super().scan

        def shard_after_shard(body: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
            shard = lambda entry, _: along(body, entry, xs, **options)  # noqa: E731
            return self.sequentially(shard, carry, None)

        return shard_after_shard

    def _gathered(self, x: Array) -> Array:
        """The values of all shards, in the order of the recurrence."""
        everything = lax.all_gather(x, self.mesh_axis)
        return jnp.flip(everything, 0) if self._from_last_device else everything

    @property
    def _from_last_device(self) -> bool:
        """Whether the recurrence begins on the last device."""
        return self.backwards != self.descending

    def _of_earlier(self, x: Array, cumulate: Callable[..., Array], nothing: float) -> Array:
        """``cumulate`` over the values of the shards before this one."""
        begun = cumulate(self._gathered(x), axis=0)
        earlier = begun[jnp.maximum(self.rank - 1, 0)]
        return jnp.where(self.rank == 0, jnp.full_like(x, nothing), earlier)

    def _of(self, rank: int, tree: Any) -> Any:
        """The value of one shard, on all devices."""

        def broadcast(x: Array) -> Array:
            return lax.psum(jnp.where(self.rank == rank, x, jnp.zeros_like(x)), self.mesh_axis)

        return jax.tree.map(broadcast, tree)
