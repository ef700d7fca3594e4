"""Which elements an operation combines: one rule for each kind of primitive."""

from math import prod

import numpy as np

from deeppcr.structure.groups import Array, Labels, filled
from deeppcr.structure.moves import MOVES, each
from deeppcr.structure.visit import Rule, Visit
from depth.rules import RULES as CLASSES

LARGEST = 1 << 24  # elements of an array of labels


def move(visit: Visit) -> list[Labels]:
    """Elements go to other places."""
    arrays = [filled(labels, visit.shape(i)) for i, labels in enumerate(visit.operands)]
    return list(MOVES[visit.equation.primitive.name](visit.equation, arrays))


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


def select(visit: Visit) -> list[Labels]:
    """Where it is known which case is taken, that one; else any of them, and what the choice depends on."""
    which = visit.value(0)
    if which is None:
        return elementwise(visit)
    (shape,) = visit.results
    chosen = np.zeros(shape, np.int32)
    for i, labels in enumerate(visit.operands[1:]):
        np.copyto(chosen, filled(labels, shape), where=which == i)
    return [chosen]


def reduction(visit: Visit) -> list[Labels]:
    """The elements along some axes, which go; scalars after the operands are where each reduction starts."""
    axes = tuple(visit.params["axes"] if "axes" in visit.params else visit.params["dimensions"])
    shape = visit.results[0]
    count = len(visit.results)
    parts = [visit.groups.along(labels, axes) for labels in visit.operands[:count]]
    joined = [None if labels is None else labels.squeeze(axes) for labels in parts]
    return [visit.groups.combine(*joined, *visit.operands[count:], shape=shape)] * count


def along(*keys: str) -> Rule:
    """A rule for what combines the elements along one axis, of all operands, and keeps it."""

    def rule(visit: Visit) -> list[Labels]:
        axis = next(visit.params[key] for key in keys if key in visit.params) % len(visit.shape(0))
        parts = [visit.groups.along(labels, [axis]) for labels in visit.operands]
        shape = tuple(1 if i == axis else size for i, size in enumerate(visit.shape(0)))
        joined = visit.groups.combine(*parts, shape=shape)
        return [
            None if joined is None else np.broadcast_to(joined, result) for result in visit.results
        ]

    return rule


def trailing(count: int) -> Rule:
    """A rule for what combines all elements along the last ``count`` axes of the first operand, as factorizations do.

    The axes before them are the batch axes of all operands and results.
    """
    return lambda visit: _by_batch(visit, len(visit.shape(0)) - count)


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


def fourier(visit: Visit) -> list[Labels]:
    """All elements along the transformed axes, which are the last."""
    return _by_batch(visit, len(visit.shape(0)) - len(visit.params["fft_lengths"]))


def reinterpret(visit: Visit) -> list[Labels]:
    """The same bits: an element becomes several along a new last axis, or the last axis becomes one element."""
    (shape,) = visit.results
    return _by_batch(visit, min(len(shape), len(visit.shape(0))))


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
    **dict.fromkeys(MOVES, move),
    **{name: elementwise for name, rule in CLASSES.items() if rule.kind == "elementwise"},
    "add_any": elementwise,
    "select_n": select,
    **each(
        "argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor",
        reduction,
    ),
    **each("cumlogsumexp cummax cummin cumprod cumsum", along("axis")),
    **each(
        "approx_top_k sort top_k", along("dimension", "reduction_dimension", "axis", "operand_axis")
    ),
    **each("reduce_window_max reduce_window_min reduce_window_sum", windows),
    **each("cholesky eig eigh householder_product lu qr schur svd triangular_solve", trailing(2)),
    **each("lu_pivots_to_permutation tridiagonal_solve", trailing(1)),
    "bitcast_convert_type": reinterpret,
    "fft": fourier,
    "dot_general": dot,
    "conv_general_dilated": convolution,
}
