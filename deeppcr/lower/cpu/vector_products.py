"""Products of matrices as products with vectors, in loops that are one function.

For a product of two matrices XLA's CPU backend calls a library, which a loop that is one function
cannot: such a loop would not compile. For a product with a vector it writes plain loops. So a
product of matrices becomes a product with each row or column of the smaller one, or, if its terms
are few, a sum of them. The values are the same, but for the order of the sums.

It takes up to twice the time of the library, and is written if the loop still gains.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.lower.cpu import limits
from deeppcr.lower.products import IN_FUNCTION, Sizes, as_sum, is_real_product, is_small
from depth.jaxprs import bind


def product(equation: Any, left: Array, right: Array) -> Array:
    """A product, term by term or vector by vector."""
    sizes = Sizes.of(equation)
    if is_small(sizes, IN_FUNCTION):
        return as_sum(equation, left, right)
    if _vectors(sizes) == 1:
        return bind(equation, [left, right])[0]
    ((left_in,), (right_in,)), (left_batch, right_batch) = equation.params["dimension_numbers"]
    a, on_left = _matrix(left, left_in, left_batch)
    b, on_right = _matrix(right, right_in, right_batch)
    options = {name: equation.params[name] for name in ("precision", "preferred_element_type")}

    def dot(a: Array, b: Array, on_left: int, on_right: int) -> Array:
        return lax.dot_general(a, b, (((on_left,), (on_right,)), ((), ())), **options)

    def times(a: Array, b: Array) -> Array:  # [rows, columns]
        if sizes.rows <= sizes.columns:
            vectors = [lax.index_in_dim(a, k, 1 - on_left, False) for k in range(sizes.rows)]
            return jnp.stack([dot(x, b, 0, on_right) for x in vectors])
        vectors = [lax.index_in_dim(b, k, 1 - on_right, False) for k in range(sizes.columns)]
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
    groups = [[inner], free] if is_first else [free, [inner]]
    if batch:
        groups.insert(0, list(batch))
    order = [axis for group in groups for axis in group]
    shape = [math.prod(x.shape[axis] for axis in group) for group in groups]
    return x.transpose(order).reshape(shape), 0 if is_first else 1


def is_possible(equation: Any) -> bool:
    """Whether a loop of one function may have a product, and that of its derivative, and gains."""
    axes = len(equation.params["dimension_numbers"][0][0])
    if not is_real_product(equation) or axes > 1:
        return False
    sizes = Sizes.of(equation)
    if axes == 0 and not is_small(sizes, IN_FUNCTION):  # an outer product
        return False
    if not 0 < sizes.multiplications <= limits.MAX_MULTIPLICATIONS:
        return False
    derivative = sizes._replace(columns=sizes.terms, terms=sizes.columns)
    return _vectors(sizes) == 1 or (_is_of_few(sizes) and _is_of_few(derivative))


def parts(sizes: Sizes) -> int:
    """The terms or the vectors of a product, as it is computed."""
    return sizes.terms if is_small(sizes, IN_FUNCTION) else _vectors(sizes)


def multiplications(sizes: Sizes) -> int:
    """Of a product of matrices; 0 if one is a vector."""
    return sizes.multiplications if _vectors(sizes) > 1 else 0


def _is_of_few(sizes: Sizes) -> bool:
    """Whether a product of matrices is one of few terms or of few, short vectors."""
    if is_small(sizes, IN_FUNCTION):
        return True
    by_rows = sizes.rows <= sizes.columns <= limits.MAX_ROW
    by_columns = sizes.columns <= limits.MAX_COLUMNS and sizes.rows <= limits.MAX_ROWS
    return (by_rows or by_columns) and _vectors(sizes) <= limits.MAX_VECTORS


def _vectors(sizes: Sizes) -> int:
    """The vectors of the smaller matrix of a product; 1 if it is one."""
    return sizes.pieces * min(sizes.rows, sizes.columns)
