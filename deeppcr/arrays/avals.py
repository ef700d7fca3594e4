"""Abstract values: the types of arrays that do not exist, for tracing programs.

The type of an array is more than its shape and its dtype: whether it is weakly typed, its sharding
over a mesh with `Explicit` axes, the axes of `jax.shard_map` over which it varies, its memory.

On a mesh whose axes are `Explicit` jax tracks the sharding of every array and rejects operations
that chains need: slicing and concatenating along sharded axes. So programs run there with axes of
the type `Auto`, and their results get the shardings that the caller expects.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, auto_axes
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
    names = [old if n == m else None for (n, m), old in zip(sizes, reversed(spec), strict=False)]
    names += [None] * (len(shape) - len(names))
    spec = P(*reversed(names), unreduced=spec.unreduced, reduced=spec.reduced)
    return aval.update(shape=tuple(shape), sharding=NamedSharding(mesh, spec))


def is_weak(x: Any) -> bool:
    """Whether an array is weakly typed, as Python numbers are."""
    return bool(getattr(x, "weak_type", False))  # random keys have none


def with_weak_type(x: Any, weak: bool) -> Any:
    """The array, weakly typed or not."""
    if is_weak(x) == weak:
        return x
    return lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=weak, sharding=None)


def avals_of(atoms: Iterable[Any]) -> list[Any]:
    """The types of variables of a program."""
    return list(map(operator.attrgetter("aval"), atoms))


def abstract_avals(atoms: Iterable[Any]) -> list[Any]:
    """The types of variables of a program, for tracing another one of them."""
    return list(map(abstract, avals_of(atoms)))


def of_step(x: Any) -> Any:
    """The type of what one step reads of an array ``[L, ...]``."""
    return abstract(x, np.shape(x)[1:])


def varying_axes(*trees: Any) -> frozenset[str]:
    """The axes of `jax.shard_map` over which any of these arrays varies, or type of an array."""
    return frozenset[str]().union(*map(jaxprs.varying_axes, jax.tree.leaves(trees)))


def like(tree: Any, *models: Any) -> Any:
    """New arrays, as zeros for a loop to start from, that vary as these ``models`` do, too.

    jax converts operands itself, but not what a loop carries, or a branch returns.
    """
    axes = varying_axes(models)
    return jax.tree.map(lambda x: vary(x, axes), tree) if axes else tree


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
