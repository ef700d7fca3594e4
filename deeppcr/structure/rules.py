"""The elements that an operation combines: one rule for each kind of primitive, and for some.

Of what gathers, scatters and dynamic slices index, elements are told apart along the axes that
every window contains as a whole, and along batch axes. Along all others a window may start
anywhere, so all elements there share one label, and a write may reach any of them. If the start
depends on the state, so does everything read or written through it.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain, count, repeat

from deeppcr.structure.walk import AxisPairs, LabelRule, Labels, Visit, filled
from depth.counts import other_axes
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


def apart(axes_of: Callable[[Visit], Sequence[AxisPairs]]) -> LabelRule:
    """A rule for results that depend on all elements of the operands, but for some axes.

    ``axes_of``: for each operand the axes along which elements stay apart, with those of the
    results where they are; the last operands may have none.
    """

    def rule(visit: Visit) -> list[Labels]:
        operands = list(zip(visit.operands, chain(axes_of(visit), repeat(())), strict=False))
        results = []
        for shape in visit.results:
            labels = [visit.groups.move_axes(x, axes, len(shape)) for x, axes in operands]
            results.append(visit.groups.combine(*labels, shape=shape))
        return results

    return rule


def together(axes_of: Callable[[Visit], Collection[int]]) -> LabelRule:
    """A rule that combines the elements of all operands along some axes of the first.

    All others are axes of all operands and results.
    """

    def batch_axes(visit: Visit) -> list[AxisPairs]:
        axes = other_axes(len(visit.shape(0)), axes_of(visit))
        return [list(zip(axes, axes, strict=True))] * len(visit.operands)

    return apart(batch_axes)


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


def _dot(visit: Visit) -> list[AxisPairs]:
    """Combine the elements along the contracted axes of both operands, for each batch index."""
    (left_in, right_in), (left_batch, right_batch) = visit.params["dimension_numbers"]
    rows = *left_batch, *other_axes(len(visit.shape(0)), (*left_batch, *left_in))
    columns = other_axes(len(visit.shape(1)), (*right_batch, *right_in))
    of_left = list(zip(rows, count()))
    of_right = [*zip(right_batch, count()), *zip(columns, count(len(rows)))]
    return [of_left, of_right]


def _convolution(visit: Visit) -> list[AxisPairs]:
    """All elements of an image."""
    numbers, groups = visit.params["dimension_numbers"], visit.params["batch_group_count"]
    return [[(numbers.lhs_spec[0], numbers.out_spec[0])] if groups == 1 else [], []]


def _in_windows(
    visit: Visit,
    other: Sequence[int],
    windows: Sequence[int],
    hidden: Sequence[int],
    batch: Sequence[tuple[int, int]],
) -> AxisPairs:
    """The axes of an array, the first operand, that are axes of what is read or written.

    Args:
        visit: the second operand has the indices, along its last axis.
        other: the shape of what is read or written.
        windows: its axes that are axes of windows.
        hidden: the axes of the array that windows have not.
        batch: the batch axes of the array, each with that of the indices.
    """
    shape, places = visit.shape(0), other_axes(len(other), windows)
    inside = other_axes(len(shape), (*hidden, *dict(batch)))
    axes = [(a, b) for a, b in zip(inside, windows, strict=True) if shape[a] == other[b]]
    return axes + [(axis, places[index]) for axis, index in batch]


def _gather(visit: Visit) -> list[AxisPairs]:
    numbers, (result,) = visit.params["dimension_numbers"], visit.results
    windows, hidden = numbers.offset_dims, numbers.collapsed_slice_dims
    batched, indices = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    axes = _in_windows(visit, result, windows, hidden, list(zip(batched, indices, strict=True)))
    return [axes, list(enumerate(other_axes(len(result), windows)))]


def _scatter(visit: Visit) -> list[AxisPairs]:
    numbers = visit.params["dimension_numbers"]
    windows, hidden = numbers.update_window_dims, numbers.inserted_window_dims
    batched, indices = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    batch = list(zip(batched, indices, strict=True))
    axes = _in_windows(visit, visit.shape(2), windows, hidden, batch)
    return [_complete(visit, visit.shape(0)), _turned(batch), _turned(axes)]


def _turned(axes: AxisPairs) -> AxisPairs:
    """Those of the other array, and back."""
    return [(b, a) for a, b in axes]


def _complete(visit: Visit, window: Sequence[int]) -> AxisPairs:
    """The axes along which a window has all of the array."""
    shape = visit.shape(0)
    return [(axis, axis) for axis, size in enumerate(shape) if size == window[axis]]


RULES: dict[str, LabelRule] = {
    "elementwise": elementwise,
    "move": move,
    "reduction": apart(
        lambda visit: [list(zip(other_axes(len(visit.shape(0)), visit.params["axes"]), count()))]
    ),
    "cumulative": together(_axis),
    "sort": together(_axis),
    "window": together(_slides),
    **dict.fromkeys(("factorization", "eig", "eigh", "schur", "svd"), together(_last(2))),
    "tridiagonal_solve": together(_last(1)),
    "fft": together(lambda visit: _last(len(visit.params["fft_lengths"]))(visit)),
    "dot_general": apart(_dot),
    "conv_general_dilated": apart(_convolution),
    "gather": apart(_gather),
    "scatter": apart(_scatter),  # the primitive and the kind
    "dynamic_slice": apart(lambda visit: [_complete(visit, visit.results[0])]),
    "dynamic_update_slice": apart(
        lambda visit: [_complete(visit, visit.shape(0)), _complete(visit, visit.shape(1))]
    ),
}
