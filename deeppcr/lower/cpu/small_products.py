"""Small matrix products in a loop, written out as sums.

On a CPU, XLA compiles the body of a loop to a few kernels, and a matrix product is always one of
its own: for a state of a few entries the calls cost more than the arithmetic, and a body with a
product is never compiled to one function. Written as ``sum_k a_k * b_k``, the product fuses with
the operations around it. Its sums are those of the product, in another order.
"""

# jax 0.10.2, 2 cores, a GRU in `jax.lax.scan`: 5.7 times faster for n = 2, 1.5 for 4, 1.2 for 8
# with a batch of 8; 0.9, 1.7, 1.0 alone. Beyond a few thousand multiplications the product wins.

import math
from functools import partial
from typing import Any

from jax import Array, lax

from deeppcr.arrays.state import Leaves, float32_or_better
from deeppcr.lower.cpu.materialised import materialised, unknown_one
from deeppcr.lower.in_order import Loop, Operands
from deeppcr.programs.cut_first import CUTS, apply, evaluate
from deeppcr.programs.terms import is_real_product
from depth.counts import contracted
from depth.jaxprs import equations, moved_by, rewritten

# Multiplications up to which a product is written out: from 4096 on XLA cuts the sum into tasks for
# its threads. Up to TINY of them, a sum of SHORT terms is written term by term, not as a reduction.
MOST, TINY, SHORT = 4095, 128, 4
# LLVM vectorises short rows of results only if they fill vectors of 8, and takes 4 times as long
# for others (jax 0.10.2): up to so many multiplications the product still takes longer.
ROW, VECTOR, MOST_SCALAR = 16, 8, 640


def small_products(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule; slices come first, too: see `deeppcr.programs.cut_first`.

    In the loops of derivatives, whose products have operands that are computed just before, these
    are computed once: see `materialised`.
    """
    program = loop.program
    if not any(
        is_small_product(each) or each.primitive.name in CUTS for each in equations(program)
    ):
        return loop, operands
    moved, one = moved_by(program, program.invars[: loop.states]), unknown_one()

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        if loop.linear and is_small_product(equation):
            both = zip(equation.invars, operands, strict=True)
            operands = [materialised(x, one) if atom in moved else x for atom, x in both]
        return write_out(equation, operands)

    def step(read: Leaves) -> Leaves:
        return evaluate(program, loop.known(read), program.outvars, replace)

    return loop.retraced(operands, step)


def write_out(equation: Any, operands: list[Any]) -> list[Any] | None:
    """The results of an equation of a loop body that is or contains a small product; else None.

    For `evaluate`.
    """
    if is_small_product(equation):
        return [_written_out(equation, *operands)]
    return rewritten(equation, operands, partial(apply, replace=write_out), is_small_product)


def is_small_product(equation: Any) -> bool:
    """Whether an equation is a product that `write_out` writes out."""
    if not is_real_product(equation):
        return False
    shape = equation.outvars[0].aval.shape
    row = shape[-1] if shape else 1
    is_scalar = VECTOR // 2 < row < ROW and row % VECTOR
    most = MOST_SCALAR if is_scalar else MOST
    return 0 < contracted(equation) * math.prod(shape) <= most


def _written_out(equation: Any, left: Array, right: Array) -> Array:
    (left_in, right_in), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left_free = [axis for axis in range(left.ndim) if axis not in (*left_in, *left_batch)]
    right_free = [axis for axis in range(right.ndim) if axis not in (*right_in, *right_batch)]
    out = equation.outvars[0].aval
    terms, batch = contracted(equation), [left.shape[axis] for axis in left_batch]
    working = float32_or_better(left.dtype, right.dtype)
    rows = [left.shape[axis] for axis in left_free]
    columns = [right.shape[axis] for axis in right_free]
    # [*batch, *rows, terms, *columns]
    a = left.transpose((*left_batch, *left_free, *left_in)).reshape(
        (*batch, *rows, terms, *[1] * len(columns))
    )
    b = right.transpose((*right_batch, *right_in, *right_free)).reshape(
        (*batch, *[1] * len(rows), terms, *columns)
    )
    a, b, axis = a.astype(working), b.astype(working), len(batch) + len(rows)

    if terms * out.size > TINY or terms > SHORT:
        return (a * b).sum(axis=axis).astype(out.dtype)
    at = partial(lax.index_in_dim, axis=axis, keepdims=False)
    first, *rest = (at(a, k) * at(b, k) for k in range(terms))
    return sum(rest, first).astype(out.dtype)
