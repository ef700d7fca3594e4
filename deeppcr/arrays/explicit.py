"""Programs on a mesh whose axes are of the type `Explicit`.

On them jax tracks the sharding of every array and rejects operations that chains need: slicing and
concatenating along sharded axes. So such programs run with axes of the type `Auto`, and their
results get the shardings that the caller expects.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, auto_axes
from jax.sharding import PartitionSpec as P


def explicit_mesh(*trees: Any, shared: bool = False) -> AbstractMesh | None:
    """The mesh with `Explicit` axes over which arrays are sharded; None if there is none.

    ``shared``: whether several devices work on the arrays in any case; then a mesh counts even if
    all arrays are replicated.
    """
    for leaf in jax.tree.leaves(trees):
        sharding = getattr(jax.typeof(leaf), "sharding", None)
        if not isinstance(sharding, NamedSharding) or not _is_explicit(sharding.mesh):
            continue
        if shared or any(part is not None for part in sharding.spec):
            return sharding.mesh.abstract_mesh
    current = jax.sharding.get_abstract_mesh()
    return current if shared and _is_explicit(current) else None


def with_auto_types(mesh: Any) -> Any:
    """The mesh with axes of the type `Auto`; a mesh without devices is unchanged."""
    if not isinstance(mesh, Mesh) or not _is_explicit(mesh):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def with_auto_axes(run: Callable[..., Any], mesh: AbstractMesh, out: Any, *arguments: Any) -> Any:
    """``run(*arguments)``, pytrees of arrays, on the same mesh with axes of the type `Auto`.

    ``out``: the `PartitionSpec` of each result, a pytree, or a prefix of one.
    """
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), out, is_leaf=lambda x: isinstance(x, P)
    )
    return jax.jit(auto_axes(run, out_sharding=shardings))(*arguments)


def _is_explicit(mesh: Any) -> bool:
    return any(kind == AxisType.Explicit for kind in mesh.axis_types)
