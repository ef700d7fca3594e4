"""Primitives that only move elements, applied to arrays of numbers or labels."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Move = Callable[[Any, list[Array]], list[Array]]  # (equation, operands) -> results


def _broadcast(equation: Any, arrays: list[Array]) -> list[Array]:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    spread = arrays[0][tuple(slice(None) if axis in axes else None for axis in range(len(shape)))]
    return [np.broadcast_to(spread, tuple(shape))]


def _reshape(equation: Any, arrays: list[Array]) -> list[Array]:
    if equation.params.get("dimensions") is not None:
        raise NotImplementedError("a reshape that also transposes")
    return [arrays[0].reshape(equation.params["new_sizes"])]


def _slice(equation: Any, arrays: list[Array]) -> list[Array]:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return [arrays[0][tuple(map(slice, starts, limits, strides))]]


def _pad(equation: Any, arrays: list[Array]) -> list[Array]:
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


SAME = """
copy stop_gradient name optimization_barrier pvary device_put layout_constraint reshard
sharding_constraint with_memory_space_constraint
"""
MOVES: dict[str, Move] = dict.fromkeys(SAME.split(), lambda _, x: x) | {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "squeeze": lambda e, x: [x[0].squeeze(tuple(e.params["dimensions"]))],
    "transpose": lambda e, x: [x[0].transpose(e.params["permutation"])],
    "rev": lambda e, x: [np.flip(x[0], tuple(e.params["dimensions"]))],
    "split": lambda e, x: np.split(x[0], np.cumsum(e.params["sizes"])[:-1], e.params["axis"]),
    "concatenate": lambda e, x: [np.concatenate(x, e.params["dimension"])],
    "stack": lambda e, x: [np.stack(x, e.params["axis"])],
    "unstack": lambda e, x: list(np.moveaxis(x[0], e.params["axis"], 0)),
    "tile": lambda e, x: [np.tile(x[0], e.params["reps"])],
}
"""The primitives whose results are known from their operands alone, by name."""
