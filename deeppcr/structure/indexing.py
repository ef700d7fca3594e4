"""Gathers, scatters and dynamic slices.

Exact where indices are known, else anywhere along the indexed axes.

Every element of a window has an index along each axis of the array that is indexed: its offset in
the window, plus the window's start. An axis along which the start is unknown is treated as one
element: all elements along it share one label, and a write may reach any of them. If the start
depends on the state, so does everything read or written through it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from deeppcr.structure.groups import Array, Labels, filled
from deeppcr.structure.walk import LARGEST, Rule, Visit


@dataclass(frozen=True)
class Windows:
    """Windows of an array, and the positions of their elements in another one.

    The other one has one axis for each index axis and window axis.

    Attributes:
        array: shape of the array that is indexed.
        sizes: of a window, along each of its axes.
        other: shape of the other array, which is read or written.
        window_axes: for each axis of the array its axis in the other one; None if windows have no
            axis.
        starts: for each axis of the array where each window starts, of the shape of the index axes
            or a number; None if that is not known.

    Windows that are not inside are moved there: what jax drops of them, or fills in, depends on
        less.
    """

    array: tuple[int, ...]
    sizes: tuple[int, ...]
    other: tuple[int, ...]
    window_axes: list[int | None]
    starts: list[Array | None]

    @property
    def index_axes(self) -> list[int]:
        """The axes of the other array that go from window to window."""
        return [axis for axis in range(len(self.other)) if axis not in self.window_axes]

    @property
    def loose(self) -> list[int]:
        """The axes of the array along which a window may start anywhere."""
        axes = enumerate(zip(self.starts, self.sizes, self.array, strict=True))
        return [axis for axis, (start, size, full) in axes if start is None and size < full]

    def along(self, axes: Sequence[int], values: Array) -> Array:
        """``values`` along some axes of the other array, in order, of size 1 along the others."""
        shape = [1] * len(self.other)
        for axis, size in zip(axes, values.shape, strict=True):
            shape[axis] = size
        return values.reshape(shape)

    def of_starts(self, visit: Visit, index: Labels) -> Labels:
        """The labels of the start of each window, along the axes of the other array."""
        if index is None:
            return None
        joined = visit.groups.along(index, [index.ndim - 1])
        return None if joined is None else self.along(self.index_axes, joined[..., 0])

    def indices(self) -> tuple[list[Array], Array]:
        """Indices of the other's elements along each axis of the array; windows that are inside."""
        indices, inside = [], np.ones((1,) * len(self.other), bool)
        windows = [self.other[axis] for axis in self.index_axes]
        axes = zip(self.window_axes, self.starts, self.sizes, self.array, strict=True)
        for window, start, size, full in axes:
            index = np.zeros((1,) * len(self.other), np.int64)
            if start is not None:
                first = np.broadcast_to(np.asarray(start, np.int64), windows)
                first = self.along(self.index_axes, first)
                inside = inside & (first >= 0) & (first <= full - size)
                index = np.clip(first, 0, full - size)
            if window is not None:
                index = index + self.along([window], np.arange(size))
            indices.append(index)
        return indices, inside


def _window_axes(ndim: int, hidden: Sequence[int], numbers: Sequence[int]) -> list[int | None]:
    """For each of ``ndim`` axes the next of ``numbers``; None for those that are ``hidden``."""
    following = iter(numbers)
    return [None if axis in hidden else next(following) for axis in range(ndim)]


def _starts(
    visit: Visit, indexed: Sequence[int], batched: Sequence[int], batch_axes: Sequence[int]
) -> list[Array | None]:
    """Where windows start along each axis of the first operand, by the indices in the second."""
    known, places = visit.value(1), np.indices(visit.shape(1)[:-1], sparse=True)
    starts: list[Array | None] = [np.zeros((), np.int64)] * len(visit.shape(0))
    for component, axis in enumerate(indexed):
        starts[axis] = None if known is None else known[..., component]
    for axis, of_index in zip(batched, batch_axes, strict=True):
        starts[axis] = places[of_index]
    return starts


def _gather(visit: Visit) -> list[Labels]:
    numbers, shape = visit.params["dimension_numbers"], visit.shape(0)
    batched, batch_axes = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    windows = Windows(
        shape,
        tuple(visit.params["slice_sizes"]),
        visit.results[0],
        _window_axes(len(shape), (*numbers.collapsed_slice_dims, *batched), numbers.offset_dims),
        _starts(visit, numbers.start_index_map, batched, batch_axes),
    )
    return [_read(visit, windows, visit.operands[1])]


def _scatter(visit: Visit) -> list[Labels]:
    numbers, shape, other = visit.params["dimension_numbers"], visit.shape(0), visit.shape(2)
    if prod(other) > LARGEST:
        return visit.walk.unknown(visit)
    batched, batch_axes = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    hidden = (*numbers.inserted_window_dims, *batched)
    window_axes = _window_axes(len(shape), hidden, numbers.update_window_dims)
    windows = Windows(
        shape,
        tuple(1 if axis is None else other[axis] for axis in window_axes),
        other,
        window_axes,
        _starts(visit, numbers.scatter_dims_to_operand_dims, batched, batch_axes),
    )
    # The function of `x.at[i].apply` may combine anything with the old elements.
    sets = visit.equation.primitive.name == "scatter" and visit.params["update_jaxpr"] is None
    return [_write(visit, windows, visit.operands[2], visit.operands[1], sets)]


def _dynamic(visit: Visit, first: int, sizes: tuple[int, ...]) -> tuple[Windows, Labels]:
    """One window, whose starts are the operands from ``first`` on, and their labels."""
    shape, axes = visit.shape(0), range(len(visit.shape(0)))
    windows = Windows(shape, sizes, sizes, [*axes], [visit.value(first + axis) for axis in axes])
    index = visit.groups.all_of(*visit.operands[first:])
    return windows, None if index is None else index[None]


def _dynamic_slice(visit: Visit) -> list[Labels]:
    return [_read(visit, *_dynamic(visit, 1, visit.results[0]))]


def _dynamic_update_slice(visit: Visit) -> list[Labels]:
    windows, index = _dynamic(visit, 2, visit.shape(1))
    return [_write(visit, windows, visit.operands[1], index, True)]


def _read(visit: Visit, windows: Windows, index: Labels) -> Labels:
    """The labels read from windows of the first operand."""
    found, groups = None, visit.groups
    if visit.operands[0] is not None:
        labels = groups.along(visit.operands[0], windows.loose)
        labels = np.broadcast_to(filled(labels, windows.array), windows.array)
        found = np.broadcast_to(labels[tuple(windows.indices()[0])], windows.other)
    return groups.combine(found, windows.of_starts(visit, index), shape=windows.other)


def _write(visit: Visit, windows: Windows, written: Labels, index: Labels, sets: bool) -> Labels:
    """The first operand after writing to its windows.

    ``sets`` if nothing is kept of what was there.
    """
    groups, before, loose = visit.groups, visit.operands[0], windows.loose
    written = groups.combine(written, windows.of_starts(visit, index), shape=windows.other)
    if written is None and (before is None or not sets):
        return before
    indices, inside = windows.indices()
    flat = np.zeros((1,) * len(windows.other), np.int64)
    for axis, (i, full) in enumerate(zip(indices, windows.array, strict=True)):
        flat = flat * full + (0 if axis in loose else i)
    at, labels = np.broadcast_arrays(flat, groups.find(filled(written, windows.other)))
    new = np.zeros(windows.array, np.int32).reshape(-1)
    np.maximum.at(new, at, labels)
    several = (labels != 0) & (labels != new[at])
    groups.unite(labels[several], new[at][several])
    new = new.reshape(windows.array)
    if loose:  # values that may land anywhere along an axis were written to its first element
        cut = tuple(slice(0, 1) if a in loose else slice(None) for a in range(new.ndim))
        return groups.combine(before, np.broadcast_to(new[cut], new.shape), shape=windows.array)
    if sets and before is not None:
        before = np.array(before).reshape(-1)
        before[at[np.broadcast_to(inside, at.shape)]] = 0
        before = before.reshape(windows.array)
    return groups.combine(before, new, shape=windows.array)


INDEXING: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter,  # the primitive and the kind
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
