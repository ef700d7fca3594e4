"""`ReplicatedAxis`: every device has the whole chain, and evaluates its share of the steps.

So the evaluations of one iteration are spread over the devices, and their results gathered. All
other work is done on every device: it is little where a step is a large model.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from deeppcr.axis.local import LOCAL, ChainAxis
from deeppcr.axis.mesh import ChainSharding
from deeppcr.checks import describe


def check_step_sharding(sharding: Any, name: str = "sharding") -> None:
    """Raise unless it shards axis 0, the steps, and no other."""
    if not isinstance(sharding, NamedSharding):
        raise TypeError(
            f"{name} is {describe(sharding)}, expected a jax.sharding.NamedSharding, such as "
            'NamedSharding(mesh, PartitionSpec("devices")), or None.'
        )
    if not sharding.spec or sharding.spec[0] is None or any(sharding.spec[1:]):
        raise ValueError(
            f"{name} has the spec {sharding.spec}, expected one that shards axis 0, the steps, and "
            'no other axis, such as PartitionSpec("devices").'
        )


@dataclasses.dataclass(frozen=True)
class ReplicatedAxis(ChainAxis):
    """All steps on each device of a mesh; see `ChainAxis`.

    ``sharding``: how the evaluations of the steps are spread over the mesh.
    """

    sharding: Any = None

    def each(self, f: Callable[..., Any], *parts: Any, shared: Any) -> Any:
        """See `ChainAxis`: ``f`` of an equal share of the steps on each device."""
        mesh = jax.sharding.get_abstract_mesh()
        mesh = self.sharding.mesh if mesh.empty else mesh
        axis = ChainSharding(mesh=mesh, mesh_axis=self.sharding.spec[0]).on_auto_axes
        length = len(jax.tree.leaves(parts)[0])
        share = -(-length // axis.size)
        added = share * axis.size - length

        def own(x: Any) -> Any:
            if added:  # the last step, again
                x = jnp.concatenate([x, jnp.broadcast_to(x[-1:], (added, *x.shape[1:]))])
            return lax.dynamic_slice_in_dim(x, axis.shard.rank * share, share)

        def evaluate(parts: Any, shared: Any) -> Any:
            found = lax.all_gather(f(*jax.tree.map(own, parts), shared), axis.mesh_axis, tiled=True)
            return jax.tree.map(lambda y: y[:length], found)

        # Inputs that enter in shards would make XLA shard what is done on them outside, too.
        return axis.per_shard(evaluate, P(), P())(parts, shared)

    def linearizer(self, linearization: Any) -> Callable[[Any, Array], Any]:
        """See `ChainAxis`."""

        def blocks(chain: Any, states: Array) -> Any:
            def share(states: Array, inputs: Any, index: Array, shared: Any) -> Any:
                linearization, captured = shared
                here = {"length": len(states), "offset": index[0], "axis": LOCAL}
                own = dataclasses.replace(chain, inputs=inputs, captured=captured, **here)
                return linearization.blocks(own, states)

            index = lax.iota(jnp.int32, len(states))
            index = index if chain.offset is None else index + chain.offset
            shared = linearization, chain.captured
            return self.each(share, states, chain.inputs, index, shared=shared)

        return blocks
