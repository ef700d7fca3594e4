"""Products as sums of terms, written one by one: ``sum_k a_k b_k``."""

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays.state import float32_or_better
from depth.counts import contracted, size
from depth.jaxprs import equations, is_literal
from depth.primitives import primitive


def is_real_product(equation: Any) -> bool:
    """Whether an equation is a product of arrays of real floating numbers."""
    if equation.primitive.name != "dot_general" or any(map(is_literal, equation.invars)):
        return False
    atoms = (*equation.invars, *equation.outvars)
    return all(jnp.issubdtype(atom.aval.dtype, jnp.floating) for atom in atoms)


def term_by_term(equation: Any, left: Array, right: Array) -> Array:
    """A product with at most one contracted axis, each term of slices of the operands."""
    # If the operands were transposed before they are sliced, XLA for GPUs would not merge their
    # kernel with others (jax 0.10.2).
    axes, (left_batch, right_batch) = equation.params["dimension_numbers"]
    if not axes[0]:  # an outer product is one term
        axes, left, right = ((left.ndim,), (right.ndim,)), left[..., None], right[..., None]
    (left_in,), (right_in,) = axes
    working = float32_or_better(left.dtype, right.dtype)
    out, batch = equation.outvars[0].aval, len(left_batch)
    rows = left.ndim - 1 - batch

    def term(k: int) -> Array:
        a = _batch_first(lax.index_in_dim(left, k, left_in), left_in, left_batch)
        b = _batch_first(lax.index_in_dim(right, k, right_in), right_in, right_batch)
        a = a.reshape((*a.shape, *(1,) * (b.ndim - batch)))
        b = b.reshape((*b.shape[:batch], *(1,) * rows, *b.shape[batch:]))
        return a.astype(working) * b.astype(working)

    return sum(map(term, range(1, contracted(equation))), term(0)).astype(out.dtype)


def _batch_first(x: Array, dropped: int, batch: Sequence[int]) -> Array:
    """``x`` without the axis ``dropped``, of size 1, and with the ``batch`` axes in front."""
    free = np.setdiff1d(range(x.ndim), (dropped, *batch))
    order = np.array([*batch, *free], int)
    return x.squeeze(dropped).transpose(*(order - (order > dropped)).tolist())


def products_with(program: Any, moved: Collection[Any], least: int) -> int:
    """The operations of products with an array that is not ``moved``, of so many entries or more.

    Of the programs inside, those of all products.
    """

    def counts(equation: Any) -> bool:
        others = (x for x in equation.invars if not is_literal(x) and x not in moved)
        return primitive(equation).kind != "product" or any(size(x) >= least for x in others)

    return products_of(program._replace(eqns=list(filter(counts, program.eqns))))


def products_of(program: Any) -> int:
    """The operations of the products of a program, convolutions included."""
    products = (each for each in equations(program) if primitive(each).kind == "product")
    return sum(primitive(each).work(each) for each in products)
