"""Chains on several devices: the one file that the rest of deeppcr sees of them.

    devices.py  `ChainSharding`, a chain axis over the devices along an axis of a mesh, and
                `DeviceAxis`, one shard of it, inside `jax.shard_map`
    chains.py   chains in equal shards: which sharding they have, functions of all shards, and
                `Sharded`: the linear recurrence, each device on its shard

On one device nothing of it runs. For users there is `deeppcr.sharding.shard`.
"""

# Written twice, names are for the rest of deeppcr, and not public.
from deeppcr.sharding.chains import Sharded as Sharded
from deeppcr.sharding.chains import find_sharding as find_sharding
from deeppcr.sharding.chains import lengthened as lengthened
from deeppcr.sharding.chains import on_shards as on_shards
from deeppcr.sharding.chains import shard
from deeppcr.sharding.chains import shardings_of as shardings_of
from deeppcr.sharding.chains import shortened as shortened
from deeppcr.sharding.chains import solver_on as solver_on
from deeppcr.sharding.chains import without_shardings as without_shardings
from deeppcr.sharding.devices import ChainSharding as ChainSharding
from deeppcr.sharding.devices import DeviceAxis as DeviceAxis

__all__ = ["shard"]


def __dir__() -> list[str]:
    """What is public."""
    return __all__
