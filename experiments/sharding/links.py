"""Links between devices: the time of a message, from published bandwidths or measured here."""

from dataclasses import dataclass
from functools import cache
from math import inf

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from experiments.bench.timing import build, clock
from experiments.sharding.stack import mesh_of, put

TRIPS = 30
CALLS = 5
SMALL, LARGE = 1, 2**18  # numbers in a message


@dataclass(frozen=True)
class Link:
    """Devices in groups, quickly connected inside a group and less so between groups.

    Attributes:
        group: devices in a group.
        row: devices in a row of the group's torus, where a message passes its neighbours; infinite
            for a switch.
        latency: seconds of the shortest message, to a neighbour.
        bandwidth: bytes a second, one way, that a device sends to a neighbour.
        far_latency: between groups.
        far_bandwidth: between groups, for each device.
        source: where the figures are from.
    """

    group: int
    row: float
    latency: float
    bandwidth: float
    far_latency: float
    far_bandwidth: float
    source: str

    def message(self, size: float, distance: int) -> float:
        """Seconds until every device has sent ``size`` bytes to the one ``distance`` further on.

        In a torus a message passes the devices between, and shares each link with as many others.
        """
        if distance >= self.group:
            return self.far_latency + size / self.far_bandwidth
        hops = distance if distance < self.row else distance / self.row
        return (1 if self.row == inf else int(hops)) * (self.latency + size / self.bandwidth)

    def all_reduce(self, size: float, count: int) -> float:
        """Seconds of a sum over ``count`` devices: parts are exchanged, then gathered."""
        if count == 1:
            return 0.0
        return 2 * sum(self.message(size * k / count, k) for k in distances(count))


def distances(count: int) -> list[int]:
    """1, 2, 4, ... below ``count``: the distances of messages in a reduction."""
    return [2**k for k in range((count - 1).bit_length())]


LINKS = {
    "H200": Link(
        *(8, inf, 10e-6, 450e9, 20e-6, 50e9),
        source="NVLink 900 GB/s both ways (nvidia.com/en-us/data-center/h200), "
        "InfiniBand NDR 400 Gb/s a GPU; latencies assumed",
    ),
    "TPU v5e": Link(
        *(256, 16, 1e-6, 45e9, 50e-6, 3.1e9),
        source="45 GB/s a link one way (jax-ml.github.io/scaling-book), 16 x 16 chips a pod, "
        "between pods 25 GB/s for 8 chips; latencies assumed",
    ),
}

ASSUMED = "\n".join(
    f"{name}: a message {1e6 * link.latency:.3g} us + bytes / {1e-9 * link.bandwidth:.3g} GB/s, "
    f"beyond {link.group} devices {1e6 * link.far_latency:.3g} us + bytes / "
    f"{1e-9 * link.far_bandwidth:.3g} GB/s ({link.source})"
    for name, link in LINKS.items()
)


@cache
def link_at_hand(count: int) -> Link:
    """The link of the first ``count`` devices as a switch, from messages to the neighbour."""
    mesh = mesh_of((count,), ("i",))
    small, large = (_seconds(mesh, size) for size in (SMALL, LARGE))
    bandwidth = 4 * (LARGE - SMALL) / max(large - small, 1e-9)
    return Link(count, inf, small, bandwidth, small, bandwidth, "measured")


def _seconds(mesh: jax.sharding.Mesh, size: int) -> float:
    """Seconds of a message of ``size`` numbers."""
    count = mesh.devices.size
    around = [(k, (k + 1) % count) for k in range(count)]

    def send(x: Array) -> Array:
        return lax.fori_loop(0, TRIPS, lambda _, x: lax.ppermute(x, "i", around), x)

    x = put(jnp.zeros((count, size), jnp.float32), mesh, "i")
    call = build(jax.shard_map(send, mesh=mesh, in_specs=P("i"), out_specs=P("i")), x).call
    call(x)
    return min(clock(lambda: call(x)) for _ in range(CALLS)) / TRIPS
