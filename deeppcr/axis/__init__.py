"""The chain axis: operations that couple the steps of a chain, on one device or several.

Most work on a chain is independent for each step. The rest is here: the state before a step, the
number of states from the start that have converged, maxima and sums along the chain, and sequential
work.

    local.py     `ChainAxis`: all steps are on one device, as axis 0 of its arrays
    devices.py   `DeviceAxis`: one shard of the chain, inside `jax.shard_map`
    mesh.py      `ChainSharding`: global arrays that are sharded over a mesh
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
