"""The elements that an operation combines: one rule for each kind of primitive, and for some.

Of what gathers, scatters and dynamic slices index, elements are told apart along the axes that
every window contains as a whole, and along batch axes. Along all others a window may start
anywhere, so all elements there share one label, and a write may reach any of them. If the start
depends on the state, so does everything read or written through it.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import count

from deeppcr.structure.walk import Axes, Labels, Rule, Visit, filled
from depth.primitives import primitive


def move(visit: Visit) -> list[Labels]:
    """A permutation or copy of elements."""
    function = primitive(visit.equation).numpy
    if function is None:
        return visit.walk.unknown(visit)
    arrays = [filled(labels, visit.shape(i)) for i, labels in enumerate(visit.operands)]
    return list(function(visit.equation, arrays))


def elementwise(visit: Visit) -> list[Labels]:
    """Elementwise: operands may be scalars or broadcast."""
    return [visit.groups.combine(*visit.operands, shape=shape) for shape in visit.results]


def apart(axes_of: Callable[[Visit], Sequence[Axes]]) -> Rule:
    """A rule for results that depend on all elements of the operands, but for some axes.

    ``axes_of``: for each operand the axes along which elements stay apart, with those of the
    results where they are.
    """

    def rule(visit: Visit) -> list[Labels]:
        operands = list(zip(visit.operands, axes_of(visit), strict=True))
        results = []
        for shape in visit.results:
            labels = [visit.groups.move_axes(x, axes, len(shape)) for x, axes in operands]
            results.append(visit.groups.combine(*labels, shape=shape))
        return results

    return rule


def _reduction(visit: Visit) -> list[Axes]:
    """Combine the elements along some axes, which are removed."""
    return [list(zip(_other_axes(visit.shape(0), visit.params["axes"]), count()))]


def together(axes_of: Callable[[Visit], Collection[int]]) -> Rule:
    """A rule that combines the elements of all operands along some axes of the first.

    All others are axes of all operands and results.
    """

    def batch_axes(visit: Visit) -> list[Axes]:
        axes = _other_axes(visit.shape(0), axes_of(visit))
        return [list(zip(axes, axes, strict=True))] * len(visit.operands)

    return apart(batch_axes)


def _other_axes(shape: tuple[int, ...], axes: Collection[int]) -> list[int]:
    return [axis for axis in range(len(shape)) if axis not in axes]


def _axis(visit: Visit) -> list[int]:
    keys = ("axis", "dimension", "reduction_dimension", "operand_axis")
    axis: int = next(visit.params[key] for key in keys if key in visit.params)
    return [axis % len(visit.shape(0))]


def _slides(visit: Visit) -> list[int]:
    """The axes that a window slides along."""
    sizes = zip(visit.params["window_dimensions"], visit.shape(0), visit.results[0], strict=True)
    return [axis for axis, (size, old, new) in enumerate(sizes) if size > 1 or old != new]


def _last(number: int) -> Callable[[Visit], Collection[int]]:
    """The last axes; those before them are batch axes."""
    return lambda visit: range(len(visit.shape(0)))[-number:]


def _dot(visit: Visit) -> list[Axes]:
    """Combine the elements along the contracted axes of both operands, for each batch index."""
    (left_in, right_in), (left_batch, right_batch) = visit.params["dimension_numbers"]
    rows = *left_batch, *_other_axes(visit.shape(0), (*left_batch, *left_in))
    columns = _other_axes(visit.shape(1), (*right_batch, *right_in))
    of_left = list(zip(rows, count()))
    of_right = [*zip(right_batch, count()), *zip(columns, count(len(rows)))]
    return [of_left, of_right]


def _convolution(visit: Visit) -> list[Axes]:
    """All elements of an image."""
    numbers, groups = visit.params["dimension_numbers"], visit.params["batch_group_count"]
    return [[(numbers.lhs_spec[0], numbers.out_spec[0])] if groups == 1 else [], []]


RULES: dict[str, Rule] = {
    "elementwise": elementwise,
    "move": move,
    "reduction": apart(_reduction),
    "cumulative": together(_axis),
    "sort": together(_axis),
    "window": together(_slides),
    **dict.fromkeys(("factorization", "eig", "eigh", "schur", "svd"), together(_last(2))),
    "tridiagonal_solve": together(_last(1)),
    "fft": together(lambda visit: _last(len(visit.params["fft_lengths"]))(visit)),
    "dot_general": apart(_dot),
    "conv_general_dilated": apart(_convolution),
}


def _read(visit: Visit, axes: Axes, index: Labels) -> list[Labels]:
    """The labels read from the first operand."""
    (shape,) = visit.results
    values = visit.groups.move_axes(visit.operands[0], axes, len(shape))
    return [visit.groups.combine(values, index, shape=shape)]


def _write(visit: Visit, axes: Axes, index: Labels, written: int) -> list[Labels]:
    """The first operand after the operand ``written`` was written to it."""
    groups, shape = visit.groups, visit.shape(0)
    values = groups.combine(visit.operands[written], index, shape=visit.shape(written))
    values = groups.move_axes(values, [(after, before) for before, after in axes], len(shape))
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
    return axes, visit.groups.move_axes(visit.operands[1], list(enumerate(places)), len(other))


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
    sizes = enumerate(zip(visit.shape(0), window, strict=True))
    return [(axis, axis) for axis, (full, size) in sizes if full == size]


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
