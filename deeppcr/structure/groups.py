"""Groups of state entries, as a union-find, and labels, which assign elements to groups.

A label is 0 for an element that does not depend on the state, else one of the entries that it may
depend on. All other entries that it may depend on are in the same group: whenever a program
combines elements of two groups, the groups are united. This loses nothing: entries that meet in an
element both influence everything that the element influences.

Unions are vectorised: the higher of each pair of roots is hooked to the lower, and pointers are
doubled until all point to roots (Shiloach and Vishkin, "An O(log n) parallel connectivity
algorithm", 1982).
"""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Labels = Array | None  # None: no element depends on the state
Axes = Sequence[tuple[int, int]]  # of an array, and of another one, to which they are moved


class DisjointSets:
    """The entries ``1 .. n`` in disjoint groups, at first one each.

    Attributes:
        parent: for each entry the root of its group, which is the lowest; 0 for 0.
        cause: the current equation, and then those whose programs contain it, inside out.
        joins: how many pairs each cause has joined.
        across_devices: whether a device receives values that depend on states of other devices.
    """

    def __init__(self, entries: int):
        self.parent = np.arange(1 + entries, dtype=np.int32)
        self.cause: tuple[Any, ...] = ()
        self.joins: Counter[tuple[Any, ...]] = Counter()
        self.across_devices = False

    def unite(self, left: Array, right: Array) -> None:
        """Make one group of each pair of labels, none of them 0."""
        left, right = self.parent[left], self.parent[right]
        self.joins[self.cause] += int((left != right).sum())
        while (differ := left != right).any():
            left, right = left[differ], right[differ]
            np.minimum.at(self.parent, np.maximum(left, right), np.minimum(left, right))
            while not np.array_equal(roots := self.parent[self.parent], self.parent):
                self.parent = roots
            left, right = self.parent[left], self.parent[right]

    def combine(self, *labels: Labels, shape: Sequence[int]) -> Labels:
        """The labels of an elementwise operation.

        Each array is a scalar, or has ``shape`` or 1 in place of it.
        """
        arrays = [array for array in labels if array is not None]
        if any(array.ndim not in (0, len(shape)) for array in arrays):
            raise ValueError(f"labels of other shapes for elements of shape {shape}")
        return np.broadcast_to(reduce(self._pair, arrays), tuple(shape)) if arrays else None

    def _pair(self, a: Array, b: Array) -> Array:
        if a is b:
            return a
        a, b = sorted((self.parent[thin(a)], self.parent[thin(b)]), key=np.size)
        met = (a != b) & (a != 0) & (b != 0)
        self.unite(np.broadcast_to(a, met.shape)[met], np.broadcast_to(b, met.shape)[met])
        # If no label of a is 0, the groups of b now are those of a, which has fewer elements.
        return a if a.all() else np.maximum(a, b)

    def moved(self, labels: Labels, axes: Axes, ndim: int) -> Labels:
        """Labels, some axes moved to axes of an array of ``ndim``; one label along all others."""
        if labels is None or labels.size == 0:
            return None
        axes = sorted(axes, key=lambda pair: pair[1])
        apart = [before for before, _ in axes]
        together = tuple(axis for axis in range(labels.ndim) if axis not in apart)
        roots = self.parent[thin(labels)]
        none = len(self.parent)
        first = np.where(roots == 0, none, roots).min(axis=together, keepdims=True)
        first[first == none] = 0
        met = (roots != first) & (roots != 0)
        self.unite(roots[met], np.broadcast_to(first, roots.shape)[met])
        before, after = [1] * labels.ndim, [1] * ndim
        for old, new in axes:
            before[old] = after[new] = labels.shape[old]
        joined: Array = np.broadcast_to(first, before)
        return joined.transpose(*apart, *together).reshape(after)

    def all_of(self, *labels: Labels) -> Labels:
        """One label, a scalar, for all elements of all arrays."""
        flat = [thin(array).reshape(-1) for array in labels if array is not None]
        return self.moved(np.concatenate(flat), [], 0) if flat else None


def thin(array: Array) -> Array:
    """The array with size 1 along axes that it was broadcast along: repeats cost nothing."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def filled(labels: Labels, shape: Sequence[int]) -> Array:
    """The labels as an array."""
    return np.broadcast_to(np.int32(0), tuple(shape)) if labels is None else labels
