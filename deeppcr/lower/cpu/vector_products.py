"""Products of matrices as products with vectors, or as sums of few terms.

XLA's CPU backend calls a library for a product of two matrices, and for no product with a vector.
Within a loop that is one function it cannot call any. The values are the same, but for the order of
the sums.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.programs.terms import is_real_product, term_by_term
from depth.counts import contracted, matrices, size
from depth.jaxprs import bind

# The multiplications and the vectors of one product, the entries of a row of matrices and the rows
# of narrow ones, up to which a loop of one function gains.
MULTIPLICATIONS, VECTORS, LONGEST, TALLEST = (1 << 17) - 1, 32, 192, 48
# Terms up to which a product is a sum of vectors, and the multiplications up to which it is.
SHORT, WRITTEN_OUT = 8, 2048


def product(equation: Any, left: Array, right: Array) -> Array:
    """A product, term by term or vector by vector."""
    if is_short(contracted(equation), size(equation.outvars[0])):
        return term_by_term(equation, left, right)
    if _vectors(equation) == 1:
        as_it_is: Array = bind(equation, [left, right])[0]
        return as_it_is
    ((left_in,), (right_in,)), (left_batch, right_batch) = equation.params["dimension_numbers"]
    _, rows, columns = matrices(equation)
    a, on_left = _matrix(left, left_in, left_batch)
    b, on_right = _matrix(right, right_in, right_batch)
    options = {name: equation.params[name] for name in ("precision", "preferred_element_type")}

    def dot(a: Array, b: Array, on_left: int, on_right: int) -> Array:
        return lax.dot_general(a, b, (((on_left,), (on_right,)), ((), ())), **options)

    def times(a: Array, b: Array) -> Array:  # [rows, columns]
        if rows <= columns:
            vectors = [lax.index_in_dim(a, k, 1 - on_left, False) for k in range(rows)]
            return jnp.stack([dot(x, b, 0, on_right) for x in vectors])
        vectors = [lax.index_in_dim(b, k, 1 - on_right, False) for k in range(columns)]
        return jnp.stack([dot(a, x, on_left, 0) for x in vectors], 1)

    products = jnp.stack(list(map(times, a, b))) if left_batch else times(a, b)
    return products.reshape(equation.outvars[0].aval.shape)


def _matrix(x: Array, inner: int, batch: Sequence[int]) -> tuple[Array, int]:
    """A matrix of the free axes and the terms, and the axis of the terms.

    The product of the batch axes is in front, if there are any. Where the terms come first, they
    stay there: XLA would transpose the matrix in every trip.
    """
    free = [axis for axis in range(x.ndim) if axis not in (inner, *batch)]
    is_first = bool(free) and inner < free[0]
    axes = [[inner], free] if is_first else [free, [inner]]
    groups = [list(batch), *axes] if batch else axes
    shape = [math.prod(x.shape[axis] for axis in group) for group in groups]
    order = [axis for group in groups for axis in group]
    return x.transpose(order).reshape(shape), 0 if is_first else 1


def parts(equation: Any) -> int:
    """The terms or the vectors of a product, as it is computed."""
    terms = contracted(equation)
    return terms if is_short(terms, size(equation.outvars[0])) else _vectors(equation)


def _vectors(equation: Any) -> int:
    """The vectors of the matrix that is multiplied vector by vector; 1 if it is one."""
    batch, rows, columns = matrices(equation)
    return batch * min(rows, columns)


def multiplications(equation: Any) -> int:
    """Of a product of matrices; 0 if one is a vector."""
    return size(equation.outvars[0]) * contracted(equation) if _vectors(equation) > 1 else 0


def is_small(equation: Any) -> bool:
    """Whether a product, and that of its derivative, are small enough for such a function."""
    axes = len(equation.params["dimension_numbers"][0][0])
    if not is_real_product(equation) or axes > 1:
        return False
    (batch, rows, columns), terms = matrices(equation), contracted(equation)
    if axes == 0 and not is_short(terms, batch * rows * columns):  # an outer product
        return False
    if not 0 < batch * rows * columns * terms <= MULTIPLICATIONS:
        return False
    if _vectors(equation) == 1:
        return True
    return _are_few(batch, rows, columns, terms) and _are_few(batch, rows, terms, columns)


def _are_few(batch: int, rows: int, columns: int, terms: int) -> bool:
    """Whether a product of matrices is one of few terms or vectors."""
    if is_short(terms, batch * rows * columns):
        return True
    gains = rows <= columns <= LONGEST or (columns <= SHORT and rows <= TALLEST)
    return gains and batch * min(rows, columns) <= VECTORS


def is_short(terms: int, entries: int) -> bool:
    """Whether a product is written out term by term."""
    return terms <= SHORT and terms * entries <= WRITTEN_OUT
