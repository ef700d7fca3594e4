"""Abstract values: the types of arrays that do not exist, for tracing programs.

The type of an array is more than its shape and its dtype: whether it is weakly typed, its sharding
over a mesh with `Explicit` axes, the axes of `jax.shard_map` over which it varies, its memory.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from depth import jaxprs
from depth.jaxprs import vary


def abstract(
    x: Any,
    shape: tuple[int, ...] | None = None,
    dtype: Any = None,
    axes: frozenset[str] = frozenset(),
) -> Any:
    """The type of an array, or of one like it of another ``shape`` or ``dtype``.

    Axes are counted from the last one: to add or to remove axes in front keeps the sharding of the
    others.

    Args:
        x: an array, a `jax.ShapeDtypeStruct`, or such a type.
        axes: of `jax.shard_map`, over which it varies, too.
    """
    aval: Any = x if isinstance(x, jax.core.AbstractValue) else jax.typeof(x)
    aval = getattr(aval, "inner_aval", aval)  # of a mutable reference
    if dtype is not None and dtype != aval.dtype:
        aval = aval.update(dtype=dtype, weak_type=False)
    if axes:
        manual = aval.manual_axis_type
        on_mesh = NamedSharding(jax.sharding.get_abstract_mesh(), aval.sharding.spec)
        varying = manual.update(varying=manual.varying | axes)
        aval = aval.update(manual_axis_type=varying, sharding=on_mesh)
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return aval
    spec, mesh = sharding.spec, sharding.mesh
    if not (mesh.manual_axes or any(spec)):  # a program of its type runs on any mesh
        return aval.update(shape=aval.shape if shape is None else shape, sharding=None)
    if shape is None or tuple(shape) == aval.shape:
        return aval
    sizes = zip(reversed(shape), reversed(aval.shape), strict=False)
    kept = [old if n == m else None for (n, m), old in zip(sizes, reversed(spec), strict=False)]
    kept += [None] * (len(shape) - len(kept))
    spec = P(*reversed(kept), unreduced=spec.unreduced, reduced=spec.reduced)
    return aval.update(shape=tuple(shape), sharding=NamedSharding(mesh, spec))


def on_one_device(x: Any) -> Any:
    """The type of an array, but for how a mesh with `Explicit` axes shards it."""
    aval = abstract(x)
    if getattr(aval, "sharding", None) is None or aval.sharding.mesh.manual_axes:
        return aval
    return aval.update(sharding=None)


def of_step(x: Any) -> Any:
    """The type of what one step reads of an array ``[L, ...]``."""
    return abstract(x, np.shape(x)[1:])


def varying_axes(*trees: Any) -> frozenset[str]:
    """The axes of `jax.shard_map` over which any of these arrays varies, or type of an array."""
    return frozenset[str]().union(*map(jaxprs.varying_axes, jax.tree.leaves(trees)))


def like(tree: Any, *others: Any) -> Any:
    """New arrays, as zeros for a loop to start from, that vary as these ``others`` do, too.

    jax converts operands itself, but not what a loop carries, or a branch returns.
    """
    axes = varying_axes(others)
    return jax.tree.map(lambda x: vary(x, axes), tree) if axes else tree
