"""Gradients of the arrays of a chain: plain sums, no transposes of products, no tiny products.

The gradient of a shared array is a sum over steps. If the state has a batch axis of size 1, this is
a sum over the first axis of ``[L, 1, w]``. On a CPU, XLA computes such a sum of a product by scalar
code; a sum over the first axis of ``[L, w]`` is vector code.

The gradient of weights of its own that a step has is, for each step, a sum of outer products over
the examples of a batch: one product for all steps, ``[L, b, n] x [L, b, m] -> [L, n, m]``. On a
CPU, XLA calls a library for each of its L pieces, however small. Written term by term it is one
kernel.
"""

# jax 0.10.2, 2 cores. Sums: 14 times faster for L = 16384, w = 32. Outer products, L = 1024: 12
# times faster for b = 8 and n = m = 8, 6 for 32, 3 for 64; 2 for b = n = m = 32. With b = 2 the
# product is as fast, and beyond MOST multiplications faster.

from collections.abc import Sequence
from typing import Any

from jax import Array, lax

from deeppcr.lower.cpu.swapped import is_transpose, swapped
from deeppcr.programs.cut_first import evaluate
from deeppcr.programs.terms import is_real_product, term_by_term
from depth.counts import contracted, matrices, size
from depth.jaxprs import entered, rewritten

LEAST, MOST_TERMS, MOST = 3, 32, 32768
PIECES = 32  # of fewer products the sums are not faster


def plain_gradients(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of a closed program, such as that of `jax.vjp`, rewritten; see this module."""
    program, known = entered(closed, operands)
    program = swapped(program)

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        """The results of what is rewritten, or of a call of a function that contains it."""
        if _is_odd_sum(equation):
            return [_plain_sum(equation, *operands)]
        if _is_few_outer_products(equation):
            return [term_by_term(equation, *operands)]
        if _is_over_leading_axes(equation):
            return [_over_one_axis(equation, *operands)]
        return rewritten(equation, operands, plain_gradients, _is_rewritten)

    return evaluate(program, known, program.outvars, replace)


def _is_rewritten(equation: Any) -> bool:
    rewritten = _is_odd_sum, _is_few_outer_products, _is_over_leading_axes, is_transpose
    return any(each(equation) for each in rewritten)


def _is_few_outer_products(equation: Any) -> bool:
    """Whether an equation is a batch of sums of a few outer products."""
    if not is_real_product(equation):
        return False
    (axes, _), _ = equation.params["dimension_numbers"]
    pieces, rows, columns = matrices(equation)
    if len(axes) != 1 or pieces < PIECES:
        return False
    terms, entries = contracted(equation), size(equation.outvars[0])
    is_of_few = LEAST <= terms <= MOST_TERMS and terms * entries <= MOST * pieces
    return is_of_few and min(rows, columns) > 1


def _is_over_leading_axes(equation: Any) -> bool:
    """Whether an equation is a sum of outer products over the same leading axes, two or more."""
    if equation.primitive.name != "dot_general":
        return False
    (left, right), (batch, _) = equation.params["dimension_numbers"]
    return not batch and len(left) > 1 and tuple(left) == tuple(right) == tuple(range(len(left)))


def _over_one_axis(equation: Any, left: Array, right: Array) -> Array:
    """The result of such a product, of one axis in place of these."""
    count = len(equation.params["dimension_numbers"][0][0])
    rows = [lax.collapse(x, 0, count) for x in (left, right)]
    params = {**equation.params, "dimension_numbers": (((0,), (0,)), ((), ()))}
    return lax.dot_general_p.bind(*rows, **params)


def _is_odd_sum(equation: Any) -> bool:
    """Whether an equation is a sum that keeps axes of size 1."""
    if equation.primitive.name != "reduce_sum":
        return False
    shape, axes = equation.invars[0].aval.shape, equation.params["axes"]
    return bool(axes) and any(size == 1 for axis, size in enumerate(shape) if axis not in axes)


def _plain_sum(equation: Any, x: Array) -> Array:
    """The result of such a sum of ``x``."""
    axes = equation.params["axes"]
    ones = [axis for axis in range(x.ndim) if axis not in axes and x.shape[axis] == 1]
    left = [axis for axis in range(x.ndim) if axis not in ones]
    total = lax.reduce_sum(lax.squeeze(x, ones), [left.index(axis) for axis in axes])
    return total.reshape(equation.outvars[0].aval.shape)
