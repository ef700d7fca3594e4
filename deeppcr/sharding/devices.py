"""A chain over several devices: `ChainSharding` outside of `jax.shard_map`, `DeviceAxis` inside.

Outside, the arrays of a chain are sharded over the devices along one axis of a mesh. Inside, device
p has the p-th of P equal shards; on a descending axis the first shard is on the last device.
Running sums and maxima are computed in each shard, then over the P results on all devices.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from deeppcr.arrays import like, with_auto_types
from deeppcr.axis import ChainAxis
from deeppcr.checks import check_type

MeshAxis = str | tuple[str, ...]
"""The name of a mesh axis, or several, of which the first varies slowest."""


def check_mesh_axis(mesh: Any, axis: Any) -> None:
    """Raise unless ``mesh`` is a mesh and ``axis`` names one of its axes, or several in a tuple."""
    meshes = jax.sharding.Mesh | jax.sharding.AbstractMesh
    check_type("mesh", mesh, meshes, "a jax.sharding.Mesh, as jax.make_mesh returns")
    names = names_of(axis)
    if not names or not set(names) <= set(mesh.axis_names):
        axes = ", ".join(map(repr, mesh.axis_names))
        raise ValueError(
            f"axis is {axis!r}, and the mesh has the axes {axes}; "
            "expected one of them, or a tuple of some."
        )


def names_of(axis: MeshAxis) -> tuple[str, ...]:
    """The names of mesh axes."""
    return axis if isinstance(axis, tuple) else (axis,)


@dataclasses.dataclass(frozen=True)
class MeshChainAxis(ChainAxis):
    """A chain in equal shards on the devices along the axis ``mesh_axis`` of ``mesh``.

    ``descending``: the first shard of the chain is on the last device. So a chain that starts at
    the end of its arrays need not move them: each device flips its own shard.
    """

    mesh: Any = None
    mesh_axis: MeshAxis = ()
    descending: bool = False

    @property
    def size(self) -> int:
        """See `ChainAxis`."""
        return math.prod(self.mesh.shape[name] for name in names_of(self.mesh_axis))


@dataclasses.dataclass(frozen=True)
class DeviceAxis(MeshChainAxis):
    """One shard, inside `jax.shard_map`; see `ChainAxis`."""

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
        pairs = [(p, p + distance) for p in range(self.size - distance)]
        if self._from_last_device:
            pairs = [(target, source) for source, target in pairs]
        return jax.tree.map(lambda leaf: self._sent(leaf, pairs), tree)

    def mirrored(self, arrays: list[Array]) -> list[Array]:
        """Each shard on the device at the other end."""
        pairs = [(p, self.size - 1 - p) for p in range(self.size)]
        return [self._sent(x, pairs) for x in arrays]

    def _sent(self, x: Array, pairs: list[tuple[int, int]]) -> Array:
        """Shards of the first devices of these pairs on the second ones.

        `jax.lax.ppermute` takes several axes in the order of the mesh, and numbers devices so.
        """
        names = names_of(self.mesh_axis)
        ordered = tuple(filter(names.__contains__, self.mesh.axis_names))
        numbers = np.arange(self.size).reshape([self.mesh.shape[name] for name in ordered])
        numbers = numbers.transpose(list(map(ordered.index, names))).reshape(-1)
        return lax.ppermute(x, ordered, [(int(numbers[p]), int(numbers[q])) for p, q in pairs])

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
        self, work: Callable[[Any, Any], tuple[Any, Any]], entry: Any, arrays: Any
    ) -> tuple[Any, Any]:
        """See `ChainAxis`."""
        if arrays is None:  # a device holds zeros until its trip comes
            shapes = jax.eval_shape(work, entry, None)[1]
            arrays = jax.tree.map(lambda x: like(jnp.zeros(x.shape, x.dtype), x), shapes)

        def trip(number: Array, state: tuple[Any, Any]) -> Any:
            carried, arrays = state
            mine = self.rank == number
            enters = mine & (number > 0)
            carried = jax.tree.map(
                lambda new, old: jnp.where(enters, new, old), self.shift(carried), carried
            )
            return lax.cond(mine, work, lambda entry, arrays: (entry, arrays), carried, arrays)

        carried, arrays = lax.fori_loop(0, self.size, trip, (entry, arrays))
        return self._of(self.size - 1, carried), arrays

    @property
    def scan(self) -> Callable[..., tuple[Any, Any]]:
        """See `ChainAxis`."""
        along = super().scan

        def shard_after_shard(body: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
            return self.sequentially(
                lambda entry, _: along(body, entry, xs, **options), carry, None
            )

        return shard_after_shard

    @property
    def _from_last_device(self) -> bool:
        """Whether the recurrence begins on the last device."""
        return self.backwards != self.descending

    def _of_earlier(self, x: Array, cumulate: Callable[..., Array], nothing: float) -> Array:
        """``cumulate`` over the values of the shards before this one."""
        gathered = lax.all_gather(x, self.mesh_axis)
        in_order = jnp.flip(gathered, 0) if self._from_last_device else gathered
        earlier = cumulate(in_order, axis=0)[jnp.maximum(self.rank - 1, 0)]
        return jnp.where(self.rank == 0, jnp.full_like(x, nothing), earlier)

    def _of(self, rank: int, tree: Any) -> Any:
        """The value of one shard, on all devices."""
        return jax.tree.map(
            lambda x: lax.psum(jnp.where(self.rank == rank, x, jnp.zeros_like(x)), self.mesh_axis),
            tree,
        )


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ChainSharding(MeshChainAxis):
    """All shards, with the operations needed outside `jax.shard_map`; see `ChainAxis`.

    Without an axis, (), the chain is one shard, and other axes of the mesh share the batch.
    """

    is_sharded: ClassVar[bool] = True

    @property
    def on_auto_axes(self) -> "ChainSharding":
        """The same for arrays on `Auto` axes, even if those of the mesh are `Explicit`."""
        return dataclasses.replace(self, mesh=with_auto_types(self.mesh))

    @property
    def shard(self) -> Any:
        """The chain axis of one device, inside `per_shard`: a `DeviceAxis`, or a `ChainAxis`."""
        if not self.mesh_axis:
            return ChainAxis(self.backwards)
        return DeviceAxis(self.backwards, self.mesh, self.mesh_axis, self.descending)

    @property
    def along(self) -> P:
        """The sharding of arrays that carry the chain on axis 0."""
        return P(self.mesh_axis)

    def per_shard(self, f: Callable[..., T], in_specs: Any, out_specs: Any) -> Callable[..., T]:
        """``f`` on every shard, by `jax.shard_map`; shardings over other mesh axes are kept.

        jax does not check that results are replicated where required: a collective makes them so.
        """
        if names := set(names_of(self.mesh_axis)):
            f = jax.shard_map(
                f,
                mesh=self.mesh,
                in_specs=in_specs,
                out_specs=out_specs,
                axis_names=names,
                check_vma=False,
            )
        # Without jit, jax maps over all axes or none, and compiles each operation on its own.
        return jax.jit(f)

    def forwards(self, length: int) -> "ChainSharding":
        """See `ChainAxis`."""
        # Arrays that the devices do not divide are replicated: nothing moves, and
        # the padding is at the end of the chain.
        is_even = length % self.size == 0
        return dataclasses.replace(self, backwards=False, descending=is_even)

    def flipped(self, tree: Any) -> Any:
        """See `ChainAxis`: each device flips its own shard."""
        leaves = jax.tree.leaves(tree)
        if not leaves or len(leaves[0]) % self.size:
            return super().flipped(tree)
        return self.per_shard(super().flipped, (self.along,), self.along)(tree)

    def in_order(self, arrays: list[Array]) -> list[Array]:
        """See `ChainAxis`: it moves the arrays of a descending chain."""
        if not self.descending:
            return arrays
        return self.per_shard(self.shard.mirrored, (self.along,), self.along)(arrays)

    def before(self, entry: Array, states: Array) -> Array:
        """See `ChainAxis`."""
        return self.per_shard(self.shard.before, (P(), self.along), self.along)(entry, states)

    def last(self, states: Array) -> Array:
        """See `ChainAxis`."""
        return self.per_shard(self.shard.last, self.along, P())(states)

    @property
    def scan(self) -> Callable[..., tuple[Any, Any]]:
        """See `ChainAxis`; all devices run all steps."""
        if not self.descending:
            return super().scan
        along = ChainAxis(not self.backwards).scan

        def against(body: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
            carry, ys = along(body, carry, self.flipped(xs), **options)
            return carry, self.flipped(ys)

        return against

    def each(self, f: Callable[..., T], parts: int) -> Callable[..., T]:
        """See `ChainAxis`."""
        return self.per_shard(f, (*[self.along] * parts, P()), self.along)
