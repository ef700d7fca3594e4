"""Split values into differentiated and constant ones, and combine them again."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


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


def zero_tangent(x: Array) -> Any:
    """The tangent of a result that is not differentiated."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)
