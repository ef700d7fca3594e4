"""Meshes of simulated devices, and calls that wait for them.

Every program is waited for: messages of several programs on simulated devices can block each other.
"""

from functools import cache

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from deeppcr import sharding
from tests.linear.loop import compiled

P = PartitionSpec
SIMULATED, DEVICES = 8, 4
TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}

if jax.device_count() < SIMULATED:
    pytest.skip(f"{SIMULATED} devices are needed", allow_module_level=True)


@cache
def mesh(kind="auto", **axes):
    """A mesh of ``axes``, sizes by name; of four devices along "chain" if none are given."""
    axes = axes or {"chain": DEVICES}
    devices = np.array(jax.devices()[: int(np.prod(list(axes.values())))]).reshape(
        tuple(axes.values())
    )
    return jax.sharding.Mesh(devices, tuple(axes), axis_types=(TYPES[kind],) * len(axes))


def put(tree, *spec, on=None):
    """Arrays on a mesh."""
    return jax.device_put(tree, NamedSharding(on or mesh(), P(*spec)))


def placed(chain, on=None, axis="chain"):
    return sharding.shard(chain, on or mesh(), axis)


def wait(f, *args):
    """What ``f`` returns, once it is there."""
    return jax.block_until_ready(f(*args))


def run(f, *args):
    """The same, compiled as one program, which runs once."""
    return wait(compiled(f), *args)


def lies_along(x, *spec):
    """Whether an array is cut as ``spec`` says, on the mesh that it is on."""
    return x.sharding.is_equivalent_to(NamedSharding(x.sharding.mesh, P(*spec)), x.ndim)


def states(chain, z0):
    """The last state and all states, by `jax.lax.scan`, and so with its derivatives."""

    def body(z, x):
        z = chain.step(z, x)
        return z, z

    return jax.lax.scan(body, z0, chain.inputs, chain.length)
