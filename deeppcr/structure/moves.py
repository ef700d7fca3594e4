"""Operations that only move elements: what they do to an array of anything, labels or numbers, in numpy."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from deeppcr.structure.groups import Array

Move = Callable[[Any, list[Array]], list[Array]]
Value = TypeVar("Value")


def each(names: str, value: Value) -> dict[str, Value]:
    """The same for all ``names``, separated by blanks."""
    return dict.fromkeys(names.split(), value)


def _same(equation: Any, arrays: list[Array]) -> list[Array]:
    return arrays


def _broadcast(equation: Any, arrays: list[Array]) -> list[Array]:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    spread = arrays[0][tuple(slice(None) if axis in axes else None for axis in range(len(shape)))]
    return [np.broadcast_to(spread, tuple(shape))]


def _reshape(equation: Any, arrays: list[Array]) -> list[Array]:
    if equation.params.get("dimensions") is not None:
        raise NotImplementedError("a reshape that also transposes")
    return [arrays[0].reshape(equation.params["new_sizes"])]


def _squeeze(equation: Any, arrays: list[Array]) -> list[Array]:
    return [arrays[0].squeeze(tuple(equation.params["dimensions"]))]


def _transpose(equation: Any, arrays: list[Array]) -> list[Array]:
    return [arrays[0].transpose(equation.params["permutation"])]


def _reverse(equation: Any, arrays: list[Array]) -> list[Array]:
    return [np.flip(arrays[0], tuple(equation.params["dimensions"]))]


def _slice(equation: Any, arrays: list[Array]) -> list[Array]:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return [arrays[0][tuple(map(slice, starts, limits, strides))]]


def _split(equation: Any, arrays: list[Array]) -> list[Array]:
    return np.split(arrays[0], np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"])


def _concatenate(equation: Any, arrays: list[Array]) -> list[Array]:
    return [np.concatenate(arrays, equation.params["dimension"])]


def _stack(equation: Any, arrays: list[Array]) -> list[Array]:
    return [np.stack(arrays, equation.params["axis"])]


def _unstack(equation: Any, arrays: list[Array]) -> list[Array]:
    return list(np.moveaxis(arrays[0], equation.params["axis"], 0))


def _tile(equation: Any, arrays: list[Array]) -> list[Array]:
    return [np.tile(arrays[0], equation.params["reps"])]


def _pad(equation: Any, arrays: list[Array]) -> list[Array]:
    operand, value = arrays
    shape = equation.outvars[0].aval.shape
    result = np.full(shape, value)
    sources, targets = [], []
    for size, limit, (low, _, between) in zip(
        operand.shape, shape, equation.params["padding_config"], strict=True
    ):
        place = low + np.arange(size) * (between + 1)
        source = np.flatnonzero((place >= 0) & (place < limit))  # negative padding cuts off
        sources.append(source)
        targets.append(place[source])
    result[np.ix_(*targets)] = operand[np.ix_(*sources)]
    return [result]


MOVES: dict[str, Move] = {
    **each(
        """
        copy stop_gradient name optimization_barrier device_put sharding_constraint layout_constraint reshard pvary
        with_memory_space_constraint
        """,
        _same,
    ),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "pad": _pad,
}
