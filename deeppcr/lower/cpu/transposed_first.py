"""Loops whose products read matrices row by row: matrices that stay the same, transposed before.

XLA's CPU libraries rearrange a matrix in every product with few rows whose terms lie along its last
axis, as they do in the derivative of ``h @ w``, ``d @ w.T``. A matrix that is the same in all steps
is transposed once, before the loop.
"""

# 2 cores, d [B, 4n] @ w.T, n = 64 to 512: jax 0.12.0: 0.33 to 0.5 of the time for B = 4, 0.6 to 0.7
# for 16, 0.9 to 1 for 64; for B = 1 and in narrower products nothing (1.1). jax 0.10.2 is alike.

from typing import Any

from jax import Array

from deeppcr.lower.in_order import Loop, Operands
from depth.counts import matrices, size
from depth.jaxprs import is_literal

ROWS = range(2, 49)  # of the other operand, for which it gains
LEAST = 1 << 12  # entries of such a matrix


def transposed_first(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule."""
    program = loop.program
    values = dict(zip(program.constvars, operands.constants, strict=True))
    transposed: dict[Any, tuple[Any, Array]] = {}
    equations = []
    for equation in program.eqns:
        if _reads_rows(equation, values):
            left, matrix = equation.invars
            if matrix not in transposed:
                aval = matrix.aval
                turned = type(matrix)(aval.update(shape=aval.shape[::-1]))
                transposed[matrix] = turned, values[matrix].T
            axes, batch = equation.params["dimension_numbers"]
            numbers = (axes[0], (0,)), batch
            equation = equation.replace(
                invars=[left, transposed[matrix][0]],
                params={**equation.params, "dimension_numbers": numbers},
            )
        equations.append(equation)
    if not transposed:
        return loop, operands
    more = list(transposed.values())
    program = program._replace(
        constvars=[*program.constvars, *(variable for variable, _ in more)], eqns=equations
    )
    constants = [*operands.constants, *(value for _, value in more)]
    return loop._replace(program=program), operands._replace(constants=constants)


def _reads_rows(equation: Any, values: dict[Any, Any]) -> bool:
    """Whether it multiplies few rows by the transpose of one of these matrices."""
    if equation.primitive.name != "dot_general" or is_literal(equation.invars[1]):
        return False
    matrix = equation.invars[1]
    (_, axes), (_, batch) = equation.params["dimension_numbers"]
    is_transposed = matrix in values and matrix.aval.ndim == 2 and not batch and tuple(axes) == (1,)
    return is_transposed and size(matrix) >= LEAST and matrices(equation)[1] in ROWS
