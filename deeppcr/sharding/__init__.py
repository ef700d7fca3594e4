"""Chains on several devices: the one file that the rest of deeppcr sees of them.

    mesh.py     `ChainSharding`: a chain axis over the devices along an axis of a mesh
    devices.py  `DeviceAxis`: one shard of it, inside `jax.shard_map`
    solver.py   `Sharded`: the linear recurrence, each device on its shard
    chains.py   chains in equal shards: which sharding they have, and functions of all shards

On one device nothing of it runs. For users there is `deeppcr.sharding.shard`.
"""

from deeppcr.sharding.chains import (
    find_sharding,
    lengthened,
    on_shards,
    shard,
    shardings_of,
    shortened,
    without_shardings,
)
from deeppcr.sharding.devices import DeviceAxis
from deeppcr.sharding.mesh import ChainSharding
from deeppcr.sharding.solver import Sharded, ShardSolver, solver_on

__all__ = [
    "ChainSharding",
    "DeviceAxis",
    "ShardSolver",
    "Sharded",
    "find_sharding",
    "lengthened",
    "on_shards",
    "shard",
    "shardings_of",
    "shortened",
    "solver_on",
    "without_shardings",
]


def __dir__() -> list[str]:
    """What is public."""
    return ["shard"]
