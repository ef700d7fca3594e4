"""States: lists of leaves, which are split, combined, and flattened to vectors.

A state is a pytree of arrays. Some of its leaves are differentiated, others are constant; those
that are solved for are flattened to the vectors that Jacobian blocks act on.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.checks import describe


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
        return [int(np.prod(shape, dtype=int)) for shape in self.shapes]

    @property
    def width(self) -> int:
        """w, the number of entries of the state of one batch element."""
        return sum(self.sizes)

    @property
    def batch_size(self) -> int:
        """The number of batch elements; 1 without batch axes."""
        return int(np.prod(self.batch_shape, dtype=int))

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
    return [jax.lax.add(p, q) for p, q in zip(a, b, strict=True)]


def cast(leaves: Leaves, dtypes: Sequence[Any]) -> Leaves:
    """Every leaf in its dtype."""
    return [
        leaf if leaf.dtype == dtype else leaf.astype(dtype)
        for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
