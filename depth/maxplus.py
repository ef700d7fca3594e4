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

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

Array = Any


class Algebra(NamedTuple):
    """The numbers for programs in which no path is deeper than ``longest``."""

    dtype: Any
    never: int  # minus infinity: no path
    threshold: int  # lower values are minus infinity plus a finite number

    @classmethod
    def up_to(cls, longest: int) -> "Algebra":
        """An algebra that is exact for all depths up to ``longest``."""
        if longest < 1 << 60:
            return cls(np.int64, -(1 << 62), -(1 << 61))
        return cls(object, -4 * longest, -2 * longest)

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
            be merged beforehand: in
        a training loop, where all weights act through the one loss, few are left.
        """
        result = self.nothing(a.shape[0], b.shape[1])
        alike: dict[bytes, list[tuple[int, Any]]] = {}
        paths_a, paths_b = a > self.threshold, (b > self.threshold).any(axis=1)
        for k in np.flatnonzero(paths_a.any(axis=0) & paths_b).tolist():
            top = a[:, k].max()
            shape = np.where(paths_a[:, k], a[:, k] - top, 1)
            key = shape.tobytes() if shape.dtype != object else repr(shape.tolist()).encode()
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


def where(left: Array, right: Array, value: Any) -> int:
    """The k at which ``left[k] + right[k]`` is ``value``, the depth of a path."""
    return int(np.flatnonzero(left + right == value)[0])


class Power:
    """``matrix`` to the power ``exponent``, with the way back.

    Which entries of ``matrix`` make up a path.

    Squares are stored, so that a path of length 2^k is found from two of length 2^(k-1), and all
    paths with a common segment are followed once.  There are at most n^2 log2(exponent) segments,
    for paths of any length.
    """

    def __init__(self, algebra: Algebra, matrix: Array, exponent: int):
        self.algebra = algebra
        self.squares = [matrix]
        for _ in range(1, exponent.bit_length()):
            self.squares.append(algebra.product(self.squares[-1], self.squares[-1]))
        # value = squares[bits[-1]] ... squares[bits[0]]: partial[k] holds the product of the first
        # k + 1 from the right.
        self.bits = [k for k in range(exponent.bit_length()) if exponent >> k & 1]
        self.partial = [self.squares[k] for k in self.bits[:1]]
        for k in self.bits[1:]:
            self.partial.append(algebra.product(self.squares[k], self.partial[-1]))
        self.value = self.partial[-1] if self.partial else algebra.identity(len(matrix))

    def entries(self, wanted: Counter[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """How often each entry (to, from) of ``matrix`` lies on the longest paths ``wanted``."""
        pieces = [Counter[tuple[int, int]]() for _ in self.squares]
        for k in reversed(range(1, len(self.bits))):
            wanted, upper = self._split(
                wanted, self.squares[self.bits[k]], self.partial[k - 1], self.partial[k]
            )
            pieces[self.bits[k]] += upper
        if self.bits:
            pieces[self.bits[0]] += wanted
        for k in reversed(range(1, len(self.squares))):
            first, second = self._split(
                pieces[k], self.squares[k - 1], self.squares[k - 1], self.squares[k]
            )
            pieces[k - 1] += first + second
        return pieces[0]

    def _split(
        self, wanted: Counter[tuple[int, int]], left: Array, right: Array, product: Array
    ) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
        """The entries of both factors on the paths ``wanted`` of ``product = left right``."""
        in_right, in_left = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        for (i, j), count in wanted.items():
            middle = where(left[i], right[:, j], product[i, j])
            in_right[middle, j] += count
            in_left[i, middle] += count
        return in_right, in_left
