"""The time of a message between the devices at hand, measured."""

from functools import cache
from math import inf

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from experiments.common.timing import build, clock
from experiments.sharding_rows.links import Link
from experiments.sharding_rows.measured import mesh_of, put

TURNS = 30
CALLS = 5
SMALL, LARGE = 1, 2**18  # numbers in a message


@cache
def link_at_hand(count: int) -> Link:
    """What connects the first ``count`` devices, as if it were a switch: from messages that go round, to the neighbour each."""
    mesh = mesh_of((count,), ("i",))
    small, large = (_seconds(mesh, size) for size in (SMALL, LARGE))
    bandwidth = 4 * (LARGE - SMALL) / max(large - small, 1e-9)
    return Link(
        group=count,
        row=inf,
        latency=small,
        bandwidth=bandwidth,
        far_latency=small,
        far_bandwidth=bandwidth,
        source="measured",
    )


def _seconds(mesh: jax.sharding.Mesh, size: int) -> float:
    """Of a message of so many numbers."""
    count = mesh.devices.size
    around = [(k, (k + 1) % count) for k in range(count)]

    def send(x: Array) -> Array:
        return lax.fori_loop(0, TURNS, lambda _, x: lax.ppermute(x, "i", around), x)

    x = put(jnp.zeros((count, size), jnp.float32), mesh, "i")
    call = build(jax.shard_map(send, mesh=mesh, in_specs=P("i"), out_specs=P("i")), x).call
    call(x)
    return min(clock(lambda: call(x)) for _ in range(CALLS)) / TURNS
