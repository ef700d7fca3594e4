"""Primitives that only move elements, applied to arrays of numbers or labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def same(equation: Any, arrays: list[Array]) -> list[Array]:
    """The operands, unchanged."""
    return arrays


def broadcast(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.broadcast_in_dim`."""
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    spread = arrays[0][tuple(slice(None) if axis in axes else None for axis in range(len(shape)))]
    return [np.broadcast_to(spread, tuple(shape))]


def reshape(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.reshape`."""
    if equation.params.get("dimensions") is not None:
        raise NotImplementedError("a reshape that also transposes")
    return [arrays[0].reshape(equation.params["new_sizes"])]


def squeeze(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.squeeze`."""
    return [arrays[0].squeeze(tuple(equation.params["dimensions"]))]


def transpose(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.transpose`."""
    return [arrays[0].transpose(equation.params["permutation"])]


def reverse(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.rev`."""
    return [np.flip(arrays[0], tuple(equation.params["dimensions"]))]


def cut(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.slice`."""
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return [arrays[0][tuple(map(slice, starts, limits, strides))]]


def split(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.split`."""
    return np.split(arrays[0], np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"])


def concatenate(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.concatenate`."""
    return [np.concatenate(arrays, equation.params["dimension"])]


def stack(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.numpy.stack`."""
    return [np.stack(arrays, equation.params["axis"])]


def unstack(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.numpy.unstack`."""
    return list(np.moveaxis(arrays[0], equation.params["axis"], 0))


def tile(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.tile`."""
    return [np.tile(arrays[0], equation.params["reps"])]


def pad(equation: Any, arrays: list[Array]) -> list[Array]:
    """`jax.lax.pad`."""
    operand, value = arrays
    shape = equation.outvars[0].aval.shape
    result = np.full(shape, value)
    sources, targets = [], []
    padding = zip(operand.shape, shape, equation.params["padding_config"], strict=True)
    for size, limit, (low, _, between) in padding:
        index = low + np.arange(size) * (between + 1)
        source = np.flatnonzero((index >= 0) & (index < limit))  # negative padding cuts off
        sources.append(source)
        targets.append(index[source])
    result[np.ix_(*targets)] = operand[np.ix_(*sources)]
    return [result]
