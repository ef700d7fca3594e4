"""Where a chain is: all of it here, a part of it on this device, or a part on each device of a mesh.

Almost all that is done with a chain is done step by step, wherever the steps are. The rest is in this room: the state before a
part, how many states from the start have converged, maxima and sums along the chain, work that has to be done in order.

here.py     `Across`, the whole chain on one device: array operations
devices.py  `Devices`, inside `jax.shard_map`: one of P equal parts, and messages of a state, or a number, for each device
explicit.py meshes whose axes are of the type `Explicit`
spread.py   `Spread`, outside of it: arrays that are spread over a mesh, and what runs a program on every part
"""

from deeppcr.across.devices import Devices
from deeppcr.across.explicit import explicit_mesh, with_auto_axes, with_auto_types
from deeppcr.across.here import HERE, Across
from deeppcr.across.spread import Axis, Spread, check_axis, devices_along

__all__ = [
    "HERE",
    "Across",
    "Axis",
    "Devices",
    "Spread",
    "check_axis",
    "devices_along",
    "explicit_mesh",
    "with_auto_axes",
    "with_auto_types",
]
