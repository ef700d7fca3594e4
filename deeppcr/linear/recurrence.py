"""The linear recurrence with any solver, differentiable to every order.

``y_l = A_l y_{l-1} + b_l`` is ``M y = b`` with a block bidiagonal M. Its derivative is not that of
the solver's operations:

    M dy = db - dM y,    that is    dy_l = A_l dy_{l-1} + (db_l + dA_l y_{l-1}),

the same recurrence with another right-hand side. In reverse mode it is ``M^T lam = g``, one solve
of the transposed recurrence. The gradient of ``b`` is ``lam``, and that of ``A_l`` is the outer
product of ``lam_l`` and ``y_{l-1}``, for all l at once. `deeppcr.linear.linear_map` implements
this, with derivatives of every order.
"""

from typing import Any

import jax
from jax import Array

from deeppcr.arrays.avals import like
from deeppcr.arrays.state import Leaves
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks
from deeppcr.linear.linear_map import LinearMap, solved
from deeppcr.linear.solver import LinearSolver


def solve_recurrence(
    blocks: Blocks, b: Array, solver: LinearSolver, reverse: bool = False
) -> Array:
    """``y_l = A_l y_{l-1} + b_l`` with ``y_0 = 0``, unchecked; differentiable to every order."""
    blocks, b = like((blocks, b), blocks, b)
    if solver.is_decoupled(blocks, b):
        return b

    along = Along(reverse=reverse)

    leaves, tree = jax.tree.flatten(blocks)

    def with_blocks(known: Leaves) -> Blocks:
        return jax.tree.unflatten(tree, known)

    def product(known: Leaves, x: tuple[Array, Any]) -> Array:
        return along.clear_first(with_blocks(known).apply(along.shift(x[0], 1)))

    solution = LinearMap(
        lambda known, x: solver.solve(with_blocks(known), x[0], reverse),
        lambda known, g: (solver.solve_transposed(with_blocks(known), g, reverse), ()),
        product,
    )
    return solved(solution, leaves, (b, ()))
