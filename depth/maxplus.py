"""Max-plus algebra in integers.

The times of a program's outputs as maxima over its inputs, each plus a fixed depth.

A straight-line program that waits for all operands of each operation is an affine map of max-plus
algebra: output ``o`` is ready at ``max_i(M[o, i] + ready[i])``, where ``M[o, i]`` is the longest
path from input ``i`` to output ``o``, and minus infinity where there is none.  Programs one after
another are products of such matrices, and a loop of L trips is a power, taken by repeated squaring.
(Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, chapter 3.)

Minus infinity is an integer so low that no path of the program raises it to the range of numbers;
if 64 bits do not suffice, arrays hold Python integers, which are unbounded.
"""

from typing import Any

import numpy as np

Array = Any


class Algebra:
    """The numbers for programs in which no path is deeper than ``longest``.

    Attributes:
        dtype: of arrays.
        never: minus infinity: no path.
        threshold: lower values are minus infinity plus a finite number.
        all_trips: whether a loop of unknown length may make any number of trips; else it makes the
            number that is best for each path.
    """

    all_trips = False

    def __init__(self, longest: int):
        fits = longest < 1 << 60
        self.dtype: Any = np.int64 if fits else object
        self.never = -(1 << 62) if fits else -4 * longest
        self.threshold = self.never // 2
        self._known: dict[Any, Array] = {}

    def of(self, part: Any) -> Array:
        """The matrix of a part of a program, computed once."""
        if part not in self._known:
            self._known[part] = part.matrix(self)
        return self._known[part]

    def weight(self, node: Any) -> int:
        """How much later the results of a node are than its operands."""
        return node.depth

    def nothing(self, *shape: int) -> Array:
        """An array of no paths."""
        return np.full(shape, self.never, self.dtype)

    def identity(self, n: int) -> Array:
        """The identity matrix for ``n`` values."""
        eye = self.nothing(n, n)
        eye[np.arange(n), np.arange(n)] = 0
        return eye

    def tidy(self, values: Array) -> Array:
        """The values with a canonical minus infinity."""
        return np.where(values < self.threshold, self.never, values)

    def product(self, a: Array, b: Array) -> Array:
        """``(a b)[i, j] = max_k(a[i, k] + b[k, j])``, for ``a: [l, m]`` and ``b: [m, n]``.

        Columns of ``a`` that differ by a number only are one column, of which the rows of ``b`` can
        be merged beforehand: in a training loop, where all weights act through the one loss, few
        are left.
        """
        result = self.nothing(a.shape[0], b.shape[1])
        alike: dict[Any, list[tuple[int, Any]]] = {}
        paths_a = a > self.threshold
        paths_b = (b > self.threshold).any(axis=1)
        for k in np.flatnonzero(paths_a.any(axis=0) & paths_b).tolist():
            top = a[:, k].max()
            shape = np.where(paths_a[:, k], a[:, k] - top, 1)
            key = shape.tobytes() if shape.dtype != object else tuple(shape.tolist())
            alike.setdefault(key, []).append((k, top))
        for columns in alike.values():
            first, top = columns[0]
            rows = np.flatnonzero(paths_a[:, first])
            merged = (
                b[first]
                if len(columns) == 1
                else np.maximum.reduce([b[k] + (shift - top) for k, shift in columns])
            )
            result[rows] = np.maximum(result[rows], a[rows, first, None] + merged)
        return self.tidy(result)

    def power(self, matrix: Array, exponent: int) -> Array:
        """``matrix`` to the power ``exponent``, by repeated squaring."""
        result = None
        while exponent > 0:
            if exponent & 1:
                result = matrix if result is None else self.product(matrix, result)
            exponent >>= 1
            if exponent:
                matrix = self.product(matrix, matrix)
        return self.identity(len(matrix)) if result is None else result

    def repeat(self, a: Array, b: Array, trips: int) -> tuple[tuple[Array, Array], ...]:
        """``trips`` steps of ``state' = a state (+) b others``: the last state, and the latest.

        Each from the state in the beginning and from the others; the latest is that before any
        step. With ``S_t = I (+) A (+) ... (+) A^(t-1) = (I (+) A)^(t-1)``, they are ``A^t state (+)
        S_t B others`` and ``S_t state (+) S_(t-1) B others``.
        """
        either = np.maximum(a, self.identity(len(a)))
        sums, fewer = (
            self.power(either, t - 1) if t > 0 else self.nothing(*a.shape)
            for t in (trips, trips - 1)
        )
        return (self.power(a, trips), self.product(sums, b)), (sums, self.product(fewer, b))
