"""Which elements an operation combines: one rule for each kind of primitive, and for some primitives."""

from math import prod

import numpy as np

from deeppcr.structure.groups import Array, Labels, filled
from deeppcr.structure.walk import LARGEST, Rule, Visit
from depth.primitives import primitive


def move(visit: Visit) -> list[Labels]:
    """Elements go to other places."""
    function = primitive(visit.equation).numpy
    if function is None:
        return visit.walk.unknown(visit)
    arrays = [filled(labels, visit.shape(i)) for i, labels in enumerate(visit.operands)]
    return list(function(visit.equation, arrays))


def elementwise(visit: Visit) -> list[Labels]:
    """Each element of the result from the same elements of the operands, of which some may be scalars or have axes of size 1."""
    (shape,) = visit.results
    if any(
        own and not _spreads(own, shape) for own in map(visit.shape, range(len(visit.operands)))
    ):
        return visit.walk.unknown(visit)
    return [visit.groups.combine(*visit.operands, shape=shape)]


def _spreads(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(shape) == len(other) and all(a in (1, b) for a, b in zip(shape, other, strict=True))


def reduction(visit: Visit) -> list[Labels]:
    """The elements along some axes, which go."""
    axes = tuple(visit.params["axes"])
    joined = visit.groups.along(visit.operands[0], axes)
    return [None if joined is None else joined.squeeze(axes)]


def along(visit: Visit) -> list[Labels]:
    """The elements along one axis, of all operands, which stays."""
    keys = ("axis", "dimension", "reduction_dimension", "operand_axis")
    axis = next(visit.params[key] for key in keys if key in visit.params) % len(visit.shape(0))
    parts = [visit.groups.along(labels, [axis]) for labels in visit.operands]
    shape = tuple(1 if i == axis else size for i, size in enumerate(visit.shape(0)))
    joined = visit.groups.combine(*parts, shape=shape)
    return [None if joined is None else np.broadcast_to(joined, result) for result in visit.results]


def trailing(count: int) -> Rule:
    """A rule for what combines all elements along the last ``count`` axes of the first operand.

    The axes before them are the batch axes of all operands and results.
    """
    return lambda visit: _by_batch(visit, max(len(visit.shape(0)) - count, 0))


def fourier(visit: Visit) -> list[Labels]:
    """All elements along the transformed axes, which are the last."""
    return _by_batch(visit, len(visit.shape(0)) - len(visit.params["fft_lengths"]))


def _by_batch(visit: Visit, batch_ndim: int) -> list[Labels]:
    shapes = [visit.shape(i) for i in range(len(visit.operands))]
    batch = shapes[0][:batch_ndim]
    if any(shape[:batch_ndim] != batch for shape in (*shapes, *visit.results)):
        return visit.walk.unknown(visit)
    parts = [
        visit.groups.along(labels, range(batch_ndim, len(shapes[i])))
        for i, labels in enumerate(visit.operands)
    ]
    flat = [None if labels is None else labels.reshape(batch) for labels in parts]
    joined = visit.groups.combine(*flat, shape=batch)
    return [_spread(joined, shape) for shape in visit.results]


def _spread(joined: Labels, shape: tuple[int, ...]) -> Labels:
    """Axes added at the end."""
    return (
        None
        if joined is None
        else np.broadcast_to(joined[(..., *(None,) * (len(shape) - joined.ndim))], shape)
    )


def dot(visit: Visit) -> list[Labels]:
    """Elements along the contracted axes of both operands meet; batch axes stay side by side."""
    contracted, batch = visit.params["dimension_numbers"]
    parts: list[Labels] = []
    free = []
    for side in (0, 1):
        labels = visit.groups.along(visit.operands[side], contracted[side])
        own = [
            axis
            for axis in range(len(visit.shape(side)))
            if axis not in (*contracted[side], *batch[side])
        ]
        if labels is not None:
            labels = labels.squeeze(tuple(contracted[side])) if contracted[side] else labels
            place = [
                axis - sum(axis > other for other in contracted[side])
                for axis in (*batch[side], *own)
            ]
            labels = labels.transpose(place)
        parts.append(labels)
        free.append(len(own))
    if parts[0] is not None:
        parts[0] = parts[0][(..., *(None,) * free[1])]
    if parts[1] is not None:
        parts[1] = parts[1][(*(slice(None),) * len(batch[1]), *(None,) * free[0], ...)]
    return [visit.groups.combine(*parts, shape=visit.results[0])]


def windows(visit: Visit) -> list[Labels]:
    """The elements in a window, which slides along every axis."""
    params, (shape,) = visit.params, visit.results
    labels = visit.groups.combine(*visit.operands, shape=visit.shape(0))
    for axis, size in enumerate(params["window_dimensions"]):
        numbers = (
            params[key][axis] for key in ("window_strides", "base_dilation", "window_dilation")
        )
        labels = _slide(
            visit, labels, axis, shape[axis], size, params["padding"][axis][0], *numbers
        )
    return [labels]


def _slide(
    visit: Visit,
    labels: Labels,
    axis: int,
    count: int,
    size: int,
    before: int,
    stride: int,
    spread: int,
    spread_window: int,
) -> Labels:
    """The union over ``count`` windows of ``size`` elements along ``axis``."""
    if labels is None:
        return None
    shape = (*labels.shape[:axis], count, *labels.shape[axis + 1 :])
    if size * prod(shape) > LARGEST:
        return np.broadcast_to(visit.groups.along(labels, [axis]), shape)  # type: ignore[arg-type]
    pieces = []
    for k in range(size):
        place, between = np.divmod(np.arange(count) * stride + k * spread_window - before, spread)
        inside = (between == 0) & (place >= 0) & (place < labels.shape[axis])
        if inside.any():
            piece = np.take(labels, np.where(inside, place, 0), axis)
            pieces.append(
                piece
                * inside.astype(np.int32).reshape(
                    [-1 if i == axis else 1 for i in range(len(shape))]
                )
            )
    return visit.groups.combine(*pieces, shape=shape)


def convolution(visit: Visit) -> list[Labels]:
    """The channels of one feature group, in a window that slides along the spatial axes."""
    params, (shape,) = visit.params, visit.results
    labels, kernel = visit.operands
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    if labels is None or kernel is not None or params["batch_group_count"] != 1:
        return visit.walk.unknown(visit)
    labels = labels.transpose(numbers.lhs_spec)  # batch, channels, *spatial
    labels = labels.reshape(labels.shape[0], groups, labels.shape[1] // groups, *labels.shape[2:])
    found = visit.groups.along(labels, [2])
    out = [shape[axis] for axis in numbers.out_spec]
    for i, axis in enumerate(numbers.rhs_spec[2:]):
        size, (before, _) = visit.shape(1)[axis], params["padding"][i]
        dilations = (
            params["window_strides"][i],
            params["lhs_dilation"][i],
            params["rhs_dilation"][i],
        )
        found = _slide(visit, found, 3 + i, out[2 + i], size, before, *dilations)
    if found is None:
        return [None]
    full: Array = np.broadcast_to(found, (out[0], groups, out[1] // groups, *out[2:])).reshape(out)
    return [full.transpose(np.argsort(numbers.out_spec))]


RULES: dict[str, Rule] = {
    "elementwise": elementwise,
    "move": move,
    "reduction": reduction,
    "cumulative": along,
    "sort": along,
    "window": windows,
    "factorization": trailing(2),
    **dict.fromkeys(("eig", "eigh", "schur", "svd"), trailing(2)),
    "tridiagonal_solve": trailing(1),
    "fft": fourier,
    "dot_general": dot,
    "conv_general_dilated": convolution,
}
