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
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Labels = Array | None  # None: no element depends on the state


class Groups:
    """The entries ``1 .. n`` in disjoint groups, at first one each.

    Attributes:
        parent: for each entry the root of its group, which is the lowest; 0 for 0.
        cause: the current equation.
        joins: how many pairs each cause has joined.
    """

    def __init__(self, entries: int):
        self.parent = np.arange(1 + entries, dtype=np.int32)
        self.cause: Any = None
        self.joins: Counter[Any] = Counter()

    def find(self, labels: Array) -> Array:
        """The roots of their groups."""
        roots: Array = self.parent[labels]
        return roots

    def unite(self, left: Array, right: Array) -> None:
        """Make one group of each pair of labels, none of them 0."""
        left, right = self.find(left), self.find(right)
        self.joins[self.cause] += int((left != right).sum())
        while (apart := left != right).any():
            left, right = left[apart], right[apart]
            np.minimum.at(self.parent, np.maximum(left, right), np.minimum(left, right))
            while not np.array_equal(roots := self.parent[self.parent], self.parent):
                self.parent = roots
            left, right = self.find(left), self.find(right)

    def combine(self, *labels: Labels, shape: Sequence[int]) -> Labels:
        """The labels of an elementwise operation.

        Each array is a scalar, or has ``shape`` or 1 in place of it.
        """
        arrays = [array for array in labels if array is not None]
        if not arrays:
            return None
        if any(array.ndim not in (0, len(shape)) for array in arrays):
            found = [array.shape for array in arrays]
            raise ValueError(f"labels of shapes {found} for elements of shape {shape}")
        result = arrays[0]
        for array in arrays[1:]:
            result = self._pair(result, array)
        return np.broadcast_to(result, tuple(shape))

    def _pair(self, a: Array, b: Array) -> Array:
        if a is b:
            return a
        a, b = sorted((self.find(thin(a)), self.find(thin(b))), key=lambda array: array.size)
        met = (a != b) & (a != 0) & (b != 0)
        if met.any():
            self.unite(np.broadcast_to(a, met.shape)[met], np.broadcast_to(b, met.shape)[met])
        if a.all():  # the groups of b now are those of a, which has fewer elements
            return a
        larger: Array = np.maximum(a, b)
        return larger

    def along(self, labels: Labels, axes: Sequence[int]) -> Labels:
        """One label for all elements along ``axes``, which stay as axes of size 1."""
        if labels is None or labels.size == 0:
            return None
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(labels.shape))
        roots = self.find(thin(labels))
        none = len(self.parent)
        first = np.where(roots == 0, none, roots).min(axis=tuple(axes), keepdims=True)
        first[first == none] = 0
        met = (roots != first) & (roots != 0)
        if met.any():
            self.unite(roots[met], np.broadcast_to(first, roots.shape)[met])
        return np.broadcast_to(first, shape)

    def all_of(self, *labels: Labels) -> Labels:
        """One label, a scalar, for all elements of all arrays."""
        flat = [thin(array).reshape(-1) for array in labels if array is not None]
        joined = self.along(np.concatenate(flat), [0]) if flat else None
        return None if joined is None else joined.reshape(())


def thin(array: Array) -> Array:
    """The array with size 1 along axes that it was broadcast along: repeats cost nothing."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def filled(labels: Labels, shape: Sequence[int]) -> Array:
    """The labels as an array."""
    return np.broadcast_to(np.int32(0), tuple(shape)) if labels is None else labels
