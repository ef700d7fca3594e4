"""Products of small arrays as sums: which products are small, and how the sum is written.

A product, ``dot_general``, is a sum over its terms k, for each of its pieces p::

    c[p, i, j] = sum_k a[p, i, k] b[p, k, j]

A compiler runs a product as a kernel of its own, or calls a library. Of a small one, the call takes
longer than the arithmetic. Written as multiplications and additions of arrays, it is a part of the
kernel that reads it. The values are those of the product, but for the order of its sums.

There are two ways to write it, and both are fastest somewhere: as one reduction of ``a * b`` over
k, or term by term, ``a[p, i, 0] b[p, 0, j] + a[p, i, 1] b[p, 1, j] + ...``. The table below says
for each kind of program which products are small: `is_small` is the one predicate.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays import float32_or_better
from depth.counts import matrices, other_axes
from depth.jaxprs import is_literal

NO_LIMIT = sys.maxsize


class Sizes(NamedTuple):
    """Of a product ``[pieces, rows, terms] x [pieces, terms, columns]``."""

    pieces: int
    rows: int
    columns: int
    terms: int

    @classmethod
    def of(cls, equation: Any) -> Self:
        """Of a ``dot_general``."""
        return cls(*matrices(equation))

    @property
    def of_piece(self) -> int:
        """The multiplications of one piece."""
        return self.rows * self.columns * self.terms

    @property
    def multiplications(self) -> int:
        """Of all pieces."""
        return self.pieces * self.rows * self.columns * self.terms


class Limits(NamedTuple):
    """Up to which sizes a product is written as a sum, in one kind of program.

    Attributes:
        terms: of a sum, at most.
        least_terms: of a sum.
        multiplications: of all pieces, at most.
        of_piece: the multiplications of a piece, at most.
        least_pieces: of a product.
    """

    terms: int = NO_LIMIT
    least_terms: int = 1
    multiplications: int = NO_LIMIT
    of_piece: int = NO_LIMIT
    least_pieces: int = 1


# All measured with jax 0.10.2, those of CPUs on 2 cores.
#
# In a loop of a CPU: from 4096 multiplications on, XLA cuts the sum into tasks for its threads.
IN_LOOP = Limits(multiplications=4095)
# In a loop of a CPU, where LLVM does not vectorise the sum, which takes 4 times as long.
ENTRY_BY_ENTRY = Limits(multiplications=640)
# The same of a vector and the rows of a matrix, whose sums are scalar code: W @ h of 16 entries
# takes 0.8 of the time, of 18 to 24 1.3 to 1.5, and 1.0 to 1.2 with jax 0.10.2 (jax 0.12.0).
BY_ROWS = Limits(multiplications=256)
# In a loop of a CPU, term by term and not as a reduction.
TERMS_IN_LOOP = Limits(terms=4, multiplications=128)
# In a loop that is one function, term by term and not by products with vectors.
IN_FUNCTION = Limits(terms=8, multiplications=2048)
# Outer products for all steps at once on a CPU, 1024 steps: 12 times faster for 8 terms of 8 x 8,
# 6 for 32 x 32, 3 for 64 x 64; 2 for 32 terms of 32 x 32. Of 2 terms, or of fewer than 32 pieces,
# the product is as fast; of more multiplications it is faster.
OUTER_PRODUCTS = Limits(terms=32, least_terms=3, of_piece=1 << 15, least_pieces=32)
# For all steps at once on a GPU: compiled for an H200, not timed.
ON_GPU = Limits(terms=16)


def is_small(sizes: Sizes, limits: Limits) -> bool:
    """Whether a product is within the limits."""
    return (
        limits.least_terms <= sizes.terms <= limits.terms
        and sizes.pieces >= limits.least_pieces
        and sizes.of_piece <= limits.of_piece
        and 0 < sizes.multiplications <= limits.multiplications
    )


def products_of(equations: Iterable[Any]) -> list[Any]:
    """Those of the equations that are products."""
    return [x for x in equations if x.primitive.name == "dot_general"]


def is_real_product(equation: Any) -> bool:
    """Whether an equation is a product of arrays of real floating numbers."""
    atoms = (*equation.invars, *equation.outvars)
    return (
        equation.primitive.name == "dot_general"
        and not any(map(is_literal, atoms))
        and all(jnp.issubdtype(atom.aval.dtype, jnp.floating) for atom in atoms)
    )


def as_sum(equation: Any, left: Array, right: Array) -> Array:
    """A product term by term, each of slices of the operands."""
    (left_in, right_in), (left_batch, right_batch) = equation.params["dimension_numbers"]
    if not left_in:  # an outer product is one term
        left_in, right_in = (left.ndim,), (right.ndim,)
        left, right = left[..., None], right[..., None]
    left_free = other_axes(left.ndim, left_in, left_batch)
    right_free = other_axes(right.ndim, right_in, right_batch)
    working, batch = float32_or_better(left.dtype, right.dtype), len(left_batch)
    total: Any = None
    for index in np.ndindex(*sizes_along(left, left_in)):
        a = _entries(left, left_in, index, (*left_batch, *left_free))
        b = _entries(right, right_in, index, (*right_batch, *right_free))
        a = lax.reshape(a, (*a.shape, *[1] * len(right_free)))
        b = lax.reshape(b, (*b.shape[:batch], *[1] * len(left_free), *b.shape[batch:]))
        term = lax.mul(lax.convert_element_type(a, working), lax.convert_element_type(b, working))
        total = term if total is None else lax.add(total, term)
    return lax.convert_element_type(total, equation.outvars[0].aval.dtype)


def as_sum_in_loop(equation: Any, left: Array, right: Array) -> Array:
    """A product as one reduction, or, if it is tiny, term by term.

    Both are of operands ``[*pieces, *rows, terms, *columns]``. To slice them before, as `as_sum`
    does, takes more copies in a loop: a Kalman filter has 18 for 14 (jax 0.10.2).
    """
    (left_in, right_in), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left_free = other_axes(left.ndim, left_in, left_batch)
    right_free = other_axes(right.ndim, right_in, right_batch)
    pieces = sizes_along(left, left_batch)
    rows = sizes_along(left, left_free)
    columns = sizes_along(right, right_free)
    sizes, axis = Sizes.of(equation), len(pieces) + len(rows)
    a = lax.transpose(left, (*left_batch, *left_free, *left_in))
    a = lax.reshape(a, (*pieces, *rows, sizes.terms, *[1] * len(columns)))
    b = lax.transpose(right, (*right_batch, *right_in, *right_free))
    b = lax.reshape(b, (*pieces, *[1] * len(rows), sizes.terms, *columns))
    working = float32_or_better(left.dtype, right.dtype)
    a, b = lax.convert_element_type(a, working), lax.convert_element_type(b, working)
    if is_small(sizes, TERMS_IN_LOOP):
        at = partial(lax.index_in_dim, axis=axis, keepdims=False)
        total = reduce(lax.add, [lax.mul(at(a, k), at(b, k)) for k in range(sizes.terms)])
    else:
        total = lax.reduce_sum(lax.mul(a, b), [axis])
    return lax.convert_element_type(total, equation.outvars[0].aval.dtype)


def sizes_along(x: Any, axes: Iterable[int]) -> list[int]:
    """The sizes of an array along these axes."""
    return [x.shape[axis] for axis in axes]


def _entries(x: Array, axes: Sequence[int], index: Sequence[int], order: Sequence[int]) -> Array:
    """``x`` at an index along these axes, its other axes in this order."""
    # Sliced before it is transposed: else XLA for GPUs would not merge its kernel with others (jax
    # 0.10.2).
    for axis, k in zip(axes, index, strict=True):
        x = lax.index_in_dim(x, k, axis)
    rest = sorted(order)
    return lax.transpose(lax.squeeze(x, axes), list(map(rest.index, order)))
