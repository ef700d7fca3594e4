"""Gathers, scatters and dynamic slices: anywhere along the axes that are indexed.

Elements are told apart along the axes of the array that every window contains as a whole, and along
batch axes. Along all others a window may start anywhere, so all elements there share one label, and
a write may reach any of them. If the start depends on the state, so does everything read or written
through it.
"""

from collections.abc import Sequence

from deeppcr.structure.groups import Axes, Labels
from deeppcr.structure.walk import Rule, Visit


def _read(visit: Visit, axes: Axes, index: Labels) -> list[Labels]:
    """The labels read from the first operand."""
    (shape,) = visit.results
    values = visit.groups.moved(visit.operands[0], axes, len(shape))
    return [visit.groups.combine(values, index, shape=shape)]


def _write(visit: Visit, axes: Axes, index: Labels, written: int) -> list[Labels]:
    """The first operand after the operand ``written`` was written to it."""
    groups, shape = visit.groups, visit.shape(0)
    values = groups.combine(visit.operands[written], index, shape=visit.shape(written))
    values = groups.moved(values, [(after, before) for before, after in axes], len(shape))
    return [groups.combine(visit.operands[0], values, shape=shape)]


def _indexed(
    visit: Visit,
    other: Sequence[int],
    windows: Sequence[int],
    hidden: Sequence[int],
    batched: Sequence[int],
    batch_axes: Sequence[int],
) -> tuple[Axes, Labels]:
    """The axes along which elements stay apart, and the labels of where each window starts.

    Args:
        visit: its second operand has the indices, along its last axis.
        other: the shape of what is read or written.
        windows: its axes that are axes of windows.
        hidden: the axes of the array that windows have not.
        batched: the axes of the array that are batch axes.
        batch_axes: the axes of the indices for these.
    """
    shape = visit.shape(0)
    places = [axis for axis in range(len(other)) if axis not in windows]
    inside = [axis for axis in range(len(shape)) if axis not in (*hidden, *batched)]
    axes = [(a, b) for a, b in zip(inside, windows, strict=True) if shape[a] == other[b]]
    axes += [(a, places[b]) for a, b in zip(batched, batch_axes, strict=True)]
    return axes, visit.groups.moved(visit.operands[1], list(enumerate(places)), len(other))


def _gather(visit: Visit) -> list[Labels]:
    numbers, (result,) = visit.params["dimension_numbers"], visit.results
    batched, batch_axes = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    windows, hidden = numbers.offset_dims, numbers.collapsed_slice_dims
    return _read(visit, *_indexed(visit, result, windows, hidden, batched, batch_axes))


def _scatter(visit: Visit) -> list[Labels]:
    numbers, other = visit.params["dimension_numbers"], visit.shape(2)
    batched, batch_axes = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    windows, hidden = numbers.update_window_dims, numbers.inserted_window_dims
    return _write(visit, *_indexed(visit, other, windows, hidden, batched, batch_axes), 2)


def _complete(visit: Visit, window: Sequence[int]) -> Axes:
    """The axes along which a window has all of the array."""
    each = enumerate(zip(visit.shape(0), window, strict=True))
    return [(axis, axis) for axis, (full, size) in each if full == size]


def _dynamic_slice(visit: Visit) -> list[Labels]:
    index = visit.groups.all_of(*visit.operands[1:])
    return _read(visit, _complete(visit, visit.results[0]), index)


def _dynamic_update_slice(visit: Visit) -> list[Labels]:
    index = visit.groups.all_of(*visit.operands[2:])
    return _write(visit, _complete(visit, visit.shape(1)), index, 1)


INDEXING: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter,  # the primitive and the kind
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
