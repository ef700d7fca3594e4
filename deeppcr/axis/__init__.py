"""The chain axis: what concerns several steps of a chain, wherever these steps are.

Nearly all work on a chain is done step by step, side by side. The rest is here: the state before a
step, how many states from the start have converged, maxima and sums along the chain, and work that
has to be done in order.

    local.py     `ChainAxis`: all steps are on one device, as axis 0 of its arrays
    devices.py   `DeviceAxis`: one shard of the chain, inside `jax.shard_map`
    mesh.py      `ChainSharding`: arrays that are sharded over a mesh, seen as a whole
    explicit.py  meshes whose axes are of the type `Explicit`
"""

from deeppcr.axis.devices import DeviceAxis
from deeppcr.axis.explicit import explicit_mesh, with_auto_axes, with_auto_types
from deeppcr.axis.local import LOCAL, ChainAxis
from deeppcr.axis.mesh import ChainSharding, MeshAxis, check_mesh_axis, count_devices

__all__ = [
    "LOCAL",
    "ChainAxis",
    "ChainSharding",
    "DeviceAxis",
    "MeshAxis",
    "check_mesh_axis",
    "count_devices",
    "explicit_mesh",
    "with_auto_axes",
    "with_auto_types",
]
