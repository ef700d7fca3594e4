"""Loops whose products read matrices row by row: matrices that stay the same, transposed before.

XLA's CPU libraries rearrange a matrix in every product with few rows whose terms lie along its last
axis, as they do in the derivative of ``h @ w``, ``d @ w.T``. A matrix that is the same in all steps
is transposed once, before the loop, if it is large and its products have a few rows.
"""

# 2 cores, d [B, 4n] @ w.T, n = 64 to 512: jax 0.12.0: 0.33 to 0.5 of the time for B = 4, 0.6 to 0.7
# for 16, 0.9 to 1 for 64; for B = 1 and in narrower products nothing (1.1). jax 0.10.2 is alike.

from collections.abc import Collection
from functools import partial
from typing import Any

from jax import lax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.cpu import limits
from deeppcr.lower.in_order import Loop, Operands
from depth.counts import matrices, size
from depth.jaxprs import bind, interpret, is_literal


def transposed_first(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule."""
    program = loop.program
    values = dict(zip(program.constvars, operands.constants, strict=True))
    products = (each for each in program.eqns if each.primitive.name == "dot_general")
    by_rows = {each.outvars[0]: each.invars[1] for each in products if _reads_rows(each, values)}
    transposed = {matrix: values[matrix].T for matrix in dict.fromkeys(by_rows.values())}
    if not transposed:
        return loop, operands

    def by_columns(equation: Any, operands: list[Any]) -> list[Any] | None:
        if by_rows.keys().isdisjoint(equation.outvars):
            return None
        (axes, _), batch = equation.params["dimension_numbers"]
        params = equation.params | {"dimension_numbers": ((axes, (0,)), batch)}
        return [lax.dot_general_p.bind(operands[0], transposed[equation.invars[1]], **params)]

    def step(read: Leaves) -> Leaves:
        rule = partial(bind, replace=by_columns)
        return interpret(program, loop.known(read), program.outvars, rule)

    return loop.retraced(operands, step)


def _reads_rows(equation: Any, constants: Collection[Any]) -> bool:
    """Whether a product multiplies few rows by the transpose of one of these large matrices."""
    matrix = equation.invars[1]
    if is_literal(matrix) or matrix not in constants or size(matrix) < limits.LARGE_MATRIX:
        return False
    (_, axes), (_, batch) = equation.params["dimension_numbers"]
    is_by_rows = matrix.aval.ndim == 2 and not batch and tuple(axes) == (1,)
    return is_by_rows and matrices(equation)[1] in limits.ROWS_OF_TRANSPOSED
