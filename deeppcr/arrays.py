"""Arrays as data: their types, without values, and lists of leaves that make up a state.

Abstract values are the types of arrays that do not exist, for tracing programs. Such a type is more
than a shape and a dtype: whether it is weakly typed, its sharding over a mesh with `Explicit` axes,
the axes of `jax.shard_map` over which it varies, its memory.

On a mesh whose axes are `Explicit` jax tracks the sharding of every array and rejects operations
that chains need: slicing and concatenating along sharded axes. So programs run there with axes of
the type `Auto`, and their results get the shardings that the caller expects.

A state is a pytree of arrays. Some of its leaves are differentiated, others are constant; those
that are solved for are flattened to the vectors that Jacobian blocks act on.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, reduce
from itertools import starmap
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, auto_axes
from jax.sharding import PartitionSpec as P

from deeppcr.checks import describe
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


def is_traced(*trees: Any) -> bool:
    """Whether any of these arrays has no value yet, since jax traces it."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


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
        if shared or any(sharding.spec):
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


def without_first_axis(x: Array) -> Array:
    """The array on all devices of a mesh with `Explicit` axes over which axis 0 is sharded."""
    sharding = getattr(jax.typeof(x), "sharding", None)
    if sharding is None or not any(sharding.spec[:1]) or not _is_explicit(sharding.mesh):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, P(None, *sharding.spec[1:])))


def _is_explicit(mesh: Any) -> bool:
    return AxisType.Explicit in mesh.axis_types


# -- states ----------------------------------------------------------------------------------------


def floating(values: Iterable[Any]) -> list[bool]:
    """Which of these arrays, or variables of a program, are floating, and so differentiable."""
    return [jnp.issubdtype(getattr(x, "aval", x).dtype, jnp.inexact) for x in values]


def partition(values: Sequence[Any], moves: Sequence[bool]) -> list[Any]:
    """The values that move."""
    return [x for x, does in zip(values, moves, strict=True) if does]


def combine(values: Sequence[Any], moves: Sequence[bool], moving: Iterable[Any]) -> list[Any]:
    """All values, those that move replaced by ``moving``, in order."""
    rest = iter(moving)
    return [next(rest) if does else x for x, does in zip(values, moves, strict=True)]


Leaves = list[Any]


def float32_or_better(*dtypes: Any) -> Any:
    """The least dtype from float32 on that is wide enough for all of these.

    One after another: numpy does not promote bfloat16 and float16 to a common dtype.
    """
    return reduce(np.promote_types, dtypes, np.dtype(np.float32))


def check_batch(state: Leaves, names: Sequence[str], batch_ndim: int, name: str) -> None:
    """Raise unless all leaves have the same ``batch_ndim`` leading axes.

    ``names``: those of the leaves, ``name``: of the state, in messages.
    """
    if not isinstance(batch_ndim, int) or batch_ndim < 0:
        raise ValueError(f"batch_ndim is {describe(batch_ndim)}, expected an integer >= 0.")
    batches = {}
    for where, leaf in zip(names, state, strict=True):
        if leaf.ndim < batch_ndim:
            raise ValueError(
                f"{where} has shape {list(leaf.shape)}, "
                f"expected at least batch_ndim = {batch_ndim} axes."
            )
        batches[where] = leaf.shape[:batch_ndim]
    if len(set(batches.values())) > 1:
        shown = ", ".join(f"{where}: {list(shape)}" for where, shape in batches.items())
        raise ValueError(
            f"the leaves of {name} differ in their {batch_ndim} leading batch axes: {shown}; "
            "expected the same in all."
        )


@dataclasses.dataclass(frozen=True)
class StateLayout:
    """How leaves ``[*batch, ...]`` of a state are flattened to one vector ``[*batch, w]``.

    Attributes:
        shapes: of the leaves, without batch axes.
        dtypes: of the leaves.
        batch_shape: the batch axes of a state.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    batch_shape: tuple[int, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], batch_ndim: int) -> Self:
        """The layout of a state with these leaves."""
        batch_shape = tuple(leaves[0].shape[:batch_ndim]) if leaves else ()
        return cls(
            tuple(tuple(leaf.shape[batch_ndim:]) for leaf in leaves),
            tuple(leaf.dtype for leaf in leaves),
            batch_shape,
        )

    def part(self, kept: Sequence[bool]) -> Self:
        """The layout of the leaves that are ``kept``."""
        shapes, dtypes = partition(self.shapes, kept), partition(self.dtypes, kept)
        return dataclasses.replace(self, shapes=tuple(shapes), dtypes=tuple(dtypes))

    @cached_property
    def sizes(self) -> list[int]:
        """The number of entries of each leaf."""
        return list(map(math.prod, self.shapes))

    @property
    def width(self) -> int:
        """w, the number of entries of the state of one batch element."""
        return sum(self.sizes)

    @property
    def batch_size(self) -> int:
        """The number of batch elements; 1 without batch axes."""
        return math.prod(self.batch_shape)

    @cached_property
    def dtype(self) -> Any:
        """The dtype of the vector: wide enough for every leaf, and float32 or better."""
        return float32_or_better(*self.dtypes)

    @property
    def eps(self) -> tuple[tuple[int, float], ...]:
        """The number of entries of each leaf, and the machine epsilon of its dtype."""
        return tuple(
            (size, float(jnp.finfo(dtype).eps))
            for size, dtype in zip(self.sizes, self.dtypes, strict=True)
        )

    def flatten(self, leaves: Leaves) -> Array:
        """Leaves ``[..., *batch, *shape]`` as one array ``[..., *batch, w]``."""
        rows = [
            leaf.astype(self.dtype).reshape((*leaf.shape[: leaf.ndim - len(shape)], size))
            for leaf, shape, size in zip(leaves, self.shapes, self.sizes, strict=True)
        ]
        return rows[0] if len(rows) == 1 else jnp.concatenate(rows, axis=-1)

    def unflatten(self, vector: Array) -> Leaves:
        """The inverse of `flatten`."""
        leaves, start = [], 0
        for shape, dtype, size in zip(self.shapes, self.dtypes, self.sizes, strict=True):
            entries = jax.lax.slice_in_dim(vector, start, start + size, axis=vector.ndim - 1)
            leaves.append(entries.reshape((*vector.shape[:-1], *shape)).astype(dtype))
            start += size
        return leaves


def add(a: Leaves, b: Leaves) -> Leaves:
    """The sum, leaf by leaf."""
    return list(starmap(jax.lax.add, zip(a, b, strict=True)))


def cast(leaves: Leaves, dtypes: Sequence[Any]) -> Leaves:
    """Every leaf in its dtype."""
    return [
        leaf if leaf.dtype == dtype else leaf.astype(dtype)
        for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
