"""The elements that an operation combines.

One rule for each kind of primitive, and for some primitives.
"""

from collections.abc import Callable, Iterable

import numpy as np

from deeppcr.structure.groups import Labels, filled
from deeppcr.structure.walk import Rule, Visit
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
    (shape,) = visit.results
    if any(
        own and not _spreads(own, shape) for own in map(visit.shape, range(len(visit.operands)))
    ):
        return visit.walk.unknown(visit)
    return [visit.groups.combine(*visit.operands, shape=shape)]


def _spreads(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(shape) == len(other) and all(a in (1, b) for a, b in zip(shape, other, strict=True))


def reduction(visit: Visit) -> list[Labels]:
    """Combine the elements along some axes, which are removed."""
    axes = tuple(visit.params["axes"])
    joined = visit.groups.along(visit.operands[0], axes)
    return [None if joined is None else joined.squeeze(axes)]


def together(axes_of: Callable[[Visit], Iterable[int]]) -> Rule:
    """A rule that combines the elements of all operands along some axes, which are kept."""

    def rule(visit: Visit) -> list[Labels]:
        axes = list(axes_of(visit))
        parts = [visit.groups.along(labels, axes) for labels in visit.operands]
        shape = [1 if i in axes else size for i, size in enumerate(visit.shape(0))]
        joined = visit.groups.combine(*parts, shape=shape)
        return [None if joined is None else np.broadcast_to(joined, to) for to in visit.results]

    return rule


def _axis(visit: Visit) -> list[int]:
    keys = ("axis", "dimension", "reduction_dimension", "operand_axis")
    axis: int = next(visit.params[key] for key in keys if key in visit.params)
    return [axis % len(visit.shape(0))]


def _slides(visit: Visit) -> list[int]:
    """The axes that a window slides along."""
    each = zip(visit.params["window_dimensions"], visit.shape(0), visit.results[0], strict=True)
    return [axis for axis, (size, old, new) in enumerate(each) if size > 1 or old != new]


def trailing(count: Callable[[Visit], int]) -> Rule:
    """A rule that combines all elements along the last ``count`` axes of the first operand.

    The axes before them are the batch axes of all operands and results.
    """
    return lambda visit: _by_batch(visit, max(len(visit.shape(0)) - count(visit), 0))


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
    if (joined := visit.groups.combine(*flat, shape=batch)) is None:
        return [None] * len(visit.results)
    added = [(..., *(None,) * (len(shape) - joined.ndim)) for shape in visit.results]
    pairs = zip(added, visit.results, strict=True)
    return [np.broadcast_to(joined[axes], shape) for axes, shape in pairs]


def dot(visit: Visit) -> list[Labels]:
    """Combine the elements along the contracted axes of both operands, for each batch index."""
    contracted, batch = visit.params["dimension_numbers"]
    parts: list[Labels] = []
    for side in (0, 1):
        ndim, named = len(visit.shape(side)), (*batch[side], *contracted[side])
        free = [axis for axis in range(ndim) if axis not in named]
        labels = visit.groups.along(visit.operands[side], contracted[side])
        if labels is not None:
            kept = [labels.shape[axis] for axis in (*batch[side], *free)]
            labels = labels.transpose(*batch[side], *free, *contracted[side]).reshape(kept)
        parts.append(labels)
    (shape,), count = visit.results, len(batch[0])
    left, right = parts
    if left is not None:
        left = left.reshape((*left.shape, *(1,) * (len(shape) - left.ndim)))
    if right is not None:
        ones = (1,) * (len(shape) - right.ndim)
        right = right.reshape((*right.shape[:count], *ones, *right.shape[count:]))
    return [visit.groups.combine(left, right, shape=shape)]


def convolution(visit: Visit) -> list[Labels]:
    """All elements of an image."""
    labels, kernel = visit.operands
    if labels is None or kernel is not None or visit.params["batch_group_count"] != 1:
        return visit.walk.unknown(visit)
    numbers, (result,) = visit.params["dimension_numbers"], visit.results
    batch, to = numbers.lhs_spec[0], numbers.out_spec[0]
    joined = visit.groups.along(labels, [i for i in range(labels.ndim) if i != batch])
    shape = [-1 if i == to else 1 for i in range(labels.ndim)]
    return [None if joined is None else np.broadcast_to(joined.reshape(shape), result)]


RULES: dict[str, Rule] = {
    "elementwise": elementwise,
    "move": move,
    "reduction": reduction,
    "cumulative": together(_axis),
    "sort": together(_axis),
    "window": together(_slides),
    **dict.fromkeys(("factorization", "eig", "eigh", "schur", "svd"), trailing(lambda _: 2)),
    "tridiagonal_solve": trailing(lambda _: 1),
    "fft": trailing(lambda visit: len(visit.params["fft_lengths"])),
    "dot_general": dot,
    "conv_general_dilated": convolution,
}
