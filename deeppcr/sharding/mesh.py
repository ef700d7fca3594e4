"""`ChainSharding`: a chain whose arrays are sharded over the devices along one axis of a mesh."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
from jax import Array
from jax.sharding import PartitionSpec as P

from deeppcr.arrays.explicit import with_auto_types
from deeppcr.axis import ChainAxis
from deeppcr.sharding.devices import DeviceAxis, MeshAxis, count_devices, names_of

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ChainSharding(ChainAxis):
    """Equal shards of a chain on the devices along ``mesh_axis`` of ``mesh``; see `ChainAxis`.

    It has the operations needed outside `jax.shard_map`. Without an axis, (), the chain is one
    shard, and other axes of the mesh share the batch.

    ``descending``: the first shard of the chain is on the last device. So a chain that starts at
    the end of its arrays need not move them: each device flips its own shard.
    """

    mesh: Any = None
    mesh_axis: MeshAxis = ()
    descending: bool = False
    is_sharded: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """See `ChainAxis`."""
        return count_devices(self.mesh, self.mesh_axis)

    @property
    def on_auto_axes(self) -> "ChainSharding":
        """The same for arrays on `Auto` axes, even if those of the mesh are `Explicit`."""
        return dataclasses.replace(self, mesh=with_auto_types(self.mesh))

    @property
    def shard(self) -> ChainAxis:
        """The chain axis of one device, inside `per_shard`."""
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
        even = length % self.size == 0
        return dataclasses.replace(self, backwards=False, descending=even)

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
        return self.per_shard(self.shard.in_order, (self.along,), self.along)(arrays)

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
