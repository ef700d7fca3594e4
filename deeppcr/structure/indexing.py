"""Gathers, scatters and dynamic slices: exact where the indices are known integers, else anywhere along the indexed axes.

Every element of a window has a place along each axis of the array that is indexed: its position in the window, plus the window's
start, which an index gives. An axis whose index is not known is treated as one: all elements along it have one label, and what
is written may land on any. If the index depends on the state, so does what is read or written through it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from jax.lax import GatherScatterMode

from deeppcr.structure.groups import Array, Labels, filled
from deeppcr.structure.moves import each
from deeppcr.structure.rules import LARGEST
from deeppcr.structure.visit import Rule, Visit


@dataclass(frozen=True)
class Windows:
    """Windows of an array, and where their elements are in another one, which has one axis for each index and window axis.

    Attributes:
        array: shape of the array that is indexed.
        sizes: of a window, along each of its axes.
        indices: shape of the indices, the last axis from index to index of one window.
        other: shape of the other array: what is read, or what is written.
        window_axes: for each axis of the array its axis in the other one; None where windows have no axis.
        indexed: for each axis of the array the place of its index, or None.
        batched: for each axis of the array the axis of the indices that it goes along with, or None.
    """

    array: tuple[int, ...]
    sizes: tuple[int, ...]
    indices: tuple[int, ...]
    other: tuple[int, ...]
    window_axes: list[int | None]
    indexed: list[int | None]
    batched: list[int | None]

    @property
    def index_axes(self) -> list[int]:
        """The axes of the other array that go from window to window."""
        return [axis for axis in range(len(self.other)) if axis not in self.window_axes]

    def loose(self) -> list[int]:
        """The axes of the array along which a window may start anywhere, if the indices are not known."""
        sizes = zip(self.indexed, self.sizes, self.array, strict=True)
        return [
            axis
            for axis, (place, size, full) in enumerate(sizes)
            if place is not None and size < full
        ]

    def along(self, axes: Sequence[int], values: Array) -> Array:
        """``values`` along some axes of the other array, in order, of size 1 along the others."""
        shape = [1] * len(self.other)
        for axis, size in zip(axes, values.shape, strict=True):
            shape[axis] = size
        return values.reshape(shape)

    def places(self, starts: Array | None, clip: bool) -> tuple[list[Array], Array]:
        """Along each axis of the array the place of each element of the other one, and whether its window lies inside.

        ``clip`` moves windows inside.
        """
        places, inside = [], np.ones((1,) * len(self.other), bool)
        for axis, (size, full) in enumerate(zip(self.sizes, self.array, strict=True)):
            window, indexed, batched = (
                self.window_axes[axis],
                self.indexed[axis],
                self.batched[axis],
            )
            place = np.zeros((1,) * len(self.other), np.int64)
            if window is not None:
                place = place + self.along([window], np.arange(size))
            if indexed is not None and starts is not None:
                start = self.along(self.index_axes, starts[..., indexed].astype(np.int64))
                within = (start >= 0) & (start <= full - size)
                inside = inside & (within | clip)
                place = place + np.clip(start, 0, full - size)
            if batched is not None:
                place = place + self.along([self.index_axes[batched]], np.arange(full))
            places.append(place)
        return places, inside


def _gather(visit: Visit) -> list[Labels]:
    numbers, (other,) = visit.params["dimension_numbers"], visit.results
    shape = visit.shape(0)
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = Windows(
        shape,
        tuple(visit.params["slice_sizes"]),
        visit.shape(1),
        other,
        _places(
            len(shape),
            [axis for axis in range(len(shape)) if axis not in hidden],
            numbers.offset_dims,
        ),
        _places(len(shape), numbers.start_index_map),
        _places(len(shape), numbers.operand_batching_dims, numbers.start_indices_batching_dims),
    )
    return [
        _read(
            visit,
            windows,
            visit.value(1),
            visit.operands[1],
            visit.params["mode"] == GatherScatterMode.FILL_OR_DROP,
        )
    ]


def _dynamic_slice(visit: Visit) -> list[Labels]:
    shape, (other,) = visit.shape(0), visit.results
    found = None
    labels = visit.operands[0]
    if labels is not None:
        starts = [visit.value(1 + axis) for axis in range(len(shape))]
        loose = [
            axis for axis, start in enumerate(starts) if start is None and other[axis] < shape[axis]
        ]
        labels = np.broadcast_to(filled(visit.groups.along(labels, loose), ()), shape)
        clipped = [
            0 if s is None else min(max(int(s), 0), shape[a] - other[a])
            for a, s in enumerate(starts)
        ]
        found = labels[
            tuple(slice(start, start + size) for start, size in zip(clipped, other, strict=True))
        ]
    return [visit.groups.combine(found, *visit.operands[1:], shape=other)]


def _read(
    visit: Visit, windows: Windows, starts: Array | None, index: Labels, fill: bool
) -> Labels:
    labels, groups = visit.operands[0], visit.groups
    found = None
    if labels is not None:
        labels = groups.along(labels, windows.loose() if starts is None else [])
        labels = np.broadcast_to(filled(labels, windows.array), windows.array)
        places, inside = windows.places(starts, clip=not fill)
        found = np.broadcast_to(np.where(inside, labels[tuple(places)], 0), windows.other).astype(
            np.int32
        )
    return groups.combine(found, _of_windows(visit, windows, index), shape=windows.other)


def _of_windows(visit: Visit, windows: Windows, index: Labels) -> Labels:
    """What the start of each window depends on, along the axes of the other array."""
    joined = visit.groups.along(index, [len(windows.indices) - 1])
    return None if joined is None else windows.along(windows.index_axes, joined[..., 0])


def _places(
    ndim: int, axes: Sequence[int], numbers: Sequence[int] | None = None
) -> list[int | None]:
    """For each of ``ndim`` axes its number: ``numbers[i]``, or i, for ``axes[i]``; None for those not in ``axes``."""
    found = dict(
        zip(map(int, axes), range(len(axes)) if numbers is None else map(int, numbers), strict=True)
    )
    return [found.get(axis) for axis in range(ndim)]


def _scatter(visit: Visit) -> list[Labels]:
    params, numbers = visit.params, visit.params["dimension_numbers"]
    shape, other, mode = visit.shape(0), visit.shape(2), visit.params["mode"]
    modes = (
        GatherScatterMode.CLIP,
        GatherScatterMode.FILL_OR_DROP,
        GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    if mode not in modes or prod(other) > LARGEST:
        return visit.walk.unknown(visit)
    hidden = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window_axes = _places(
        len(shape),
        [axis for axis in range(len(shape)) if axis not in hidden],
        numbers.update_window_dims,
    )
    windows = Windows(
        shape,
        tuple(1 if axis is None else other[axis] for axis in window_axes),
        visit.shape(1),
        other,
        window_axes,
        _places(len(shape), numbers.scatter_dims_to_operand_dims),
        _places(len(shape), numbers.operand_batching_dims, numbers.scatter_indices_batching_dims),
    )
    starts = visit.value(1)
    written = visit.groups.combine(
        visit.operands[2], _of_windows(visit, windows, visit.operands[1]), shape=other
    )
    if starts is None:
        return [_write_anywhere(visit, windows, written, windows.loose())]
    replaces = visit.equation.primitive.name == "scatter" and params["update_jaxpr"] is None
    return [
        _write(
            visit,
            windows,
            written,
            windows.places(starts, clip=mode == GatherScatterMode.CLIP),
            replaces,
        )
    ]


def _dynamic_update_slice(visit: Visit) -> list[Labels]:
    shape, other, axes = visit.shape(0), visit.shape(1), list(range(len(visit.shape(0))))
    written = visit.groups.combine(visit.operands[1], *visit.operands[2:], shape=other)
    starts = [visit.value(2 + axis) for axis in axes]
    loose = [axis for axis in axes if starts[axis] is None and other[axis] < shape[axis]]
    known = np.array([0 if start is None else int(start) for start in starts])
    windows = Windows(shape, other, known.shape, other, list(axes), list(axes), [None] * len(axes))
    if not loose:
        return [_write(visit, windows, written, windows.places(known, clip=True), replaces=True)]
    return [
        _write_anywhere(
            visit, windows, written, loose, np.clip(known, 0, np.subtract(shape, other))
        )
    ]


def _write(
    visit: Visit,
    windows: Windows,
    written: Labels,
    where: tuple[list[Array], Array],
    replaces: bool,
) -> Labels:
    """What is written to known places; ``replaces`` if nothing of what was there before is kept."""
    groups, before = visit.groups, visit.operands[0]
    if written is None and (before is None or not replaces):
        return before
    flat = (
        np.ravel_multi_index(np.broadcast_arrays(*where[0]), windows.array)
        if windows.array
        else np.zeros((), int)
    )
    place, labels, inside = np.broadcast_arrays(flat, filled(written, windows.other), where[1])
    place, labels = place[inside], groups.find(labels[inside])
    new = np.zeros(windows.array, np.int32).reshape(-1)
    np.maximum.at(new, place, labels)
    several = (labels != 0) & (labels != new[place])
    groups.unite(labels[several], new[place][several])
    if replaces and before is not None:
        before = np.array(before).reshape(-1)
        before[place] = 0
        before = before.reshape(windows.array)
    return groups.combine(before, new.reshape(windows.array), shape=windows.array)


def _write_anywhere(
    visit: Visit,
    windows: Windows,
    written: Labels,
    loose: list[int],
    starts: Sequence[int] | None = None,
) -> Labels:
    """What is written at any place along the axes ``loose``, and to known places along the others."""
    groups = visit.groups
    sources = [
        None
        if axis in loose
        else windows.index_axes[batched]
        if batched is not None
        else windows.window_axes[axis]
        for axis, batched in enumerate(windows.batched)
    ]
    joined = groups.along(
        written, [axis for axis in range(len(windows.other)) if axis not in sources]
    )
    if joined is None:
        return visit.operands[0]
    order = [axis for axis in sources if axis is not None]
    rest = [axis for axis in range(joined.ndim) if axis not in order]
    window = joined.transpose(*order, *rest).reshape(
        [1 if axis is None else joined.shape[axis] for axis in sources]
    )
    offsets = [0] * len(sources) if starts is None else starts
    region = [
        slice(None) if axis in loose else slice(start, start + size)
        for axis, (start, size) in enumerate(zip(offsets, window.shape, strict=True))
    ]
    new = np.zeros(windows.array, np.int32)
    new[tuple(region)] = window
    return groups.combine(visit.operands[0], new, shape=windows.array)


INDEXING: dict[str, Rule] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    **each("scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub", _scatter),
}
