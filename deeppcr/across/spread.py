"""`Spread`: a chain whose arrays are spread over the devices along one axis of a mesh, seen as a whole."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from deeppcr.across.devices import Devices
from deeppcr.across.explicit import with_auto_types
from deeppcr.across.here import Across

Axis = str | tuple[str, ...]
"""The name of a mesh axis, or several, of which the first one varies slowest."""


def check_axis(mesh: Any, axis: Any, name: str = "axis") -> None:
    """``mesh`` has to be a mesh, and ``axis`` the name of one of its axes, or a tuple of names."""
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise TypeError(f"mesh is {mesh!r}, expected a jax.sharding.Mesh, as of jax.make_mesh.")
    names = axis if isinstance(axis, tuple) else (axis,)
    if not names or any(part not in mesh.axis_names for part in names):
        known = ", ".join(map(repr, mesh.axis_names))
        raise ValueError(
            f"{name} is {axis!r}, and the mesh has the axes {known}; expected one of them, or a tuple of some."
        )


def devices_along(mesh: Any, axis: Axis) -> int:
    """How many devices lie along an axis."""
    size = 1
    for name in _names(axis):
        size *= mesh.shape[name]
    return size


@dataclasses.dataclass(frozen=True)
class Spread(Across):
    """A chain of equal parts on the devices along ``axis`` of ``mesh``; see `Across`. Only what is needed outside of parts.

    Without an axis, (), it is one part, and other axes of the mesh share the batch.
    """

    mesh: Any = None
    axis: Axis = ()

    @property
    def size(self) -> int:
        """See `Across`."""
        return devices_along(self.mesh, self.axis)

    @property
    def on_auto_axes(self) -> "Spread":
        """The same for arrays that are not on a mesh with `Explicit` axes, even if this is one."""
        return dataclasses.replace(self, mesh=with_auto_types(self.mesh))

    @property
    def part(self) -> Across:
        """The same on one of the devices."""
        return (
            Devices(self.backwards, self.size, self.axis, _places(self.mesh, self.axis))
            if self.axis
            else Across(self.backwards)
        )

    @property
    def along(self) -> P:
        """The sharding of arrays that carry the chain on axis 0."""
        return P(self.axis)

    def on_parts(self, f: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """``f`` on every part, `jax.shard_map`; along other axes of the mesh arrays lie as they lay.

        jax does not check what is the same on all devices: here it is so by a collective operation.
        """
        names = set(_names(self.axis))
        if names:
            f = jax.shard_map(
                f,
                mesh=self.mesh,
                in_specs=in_specs,
                out_specs=out_specs,
                axis_names=names,
                check_vma=False,
            )
        return jax.jit(
            f
        )  # without, jax maps over all axes or none, and compiles each operation on its own

    def before(self, entry: Array, states: Array) -> Array:
        """See `Across`."""
        moved: Array = self.on_parts(self.part.before, (P(), self.along), self.along)(entry, states)
        return moved

    def last(self, states: Array) -> Array:
        """See `Across`."""
        found: Array = self.on_parts(self.part.last, self.along, P())(states)
        return found

    def each(self, f: Callable[..., Any], *parts: Any, shared: Any) -> Any:
        """See `Across`."""
        return self.on_parts(f, (*(self.along for _ in parts), P()), self.along)(*parts, shared)


def _places(mesh: Any, axis: Axis) -> tuple[int, ...]:
    """Where the devices along several axes come if these are taken in the order of the mesh."""
    names = _names(axis)
    ordered = [name for name in mesh.axis_names if name in names]
    numbers = np.arange(devices_along(mesh, axis)).reshape([mesh.shape[name] for name in ordered])
    return tuple(numbers.transpose([ordered.index(name) for name in names]).reshape(-1).tolist())


def _names(axis: Axis) -> tuple[str, ...]:
    return axis if isinstance(axis, tuple) else (axis,)
