"""Products of short vectors, for all steps at once on a GPU, written out as sums.

XLA makes sums of these products, too, but it transposes the vectors by a kernel of its own. Written
out, the product is part of the kernel that follows (jax 0.10.2, compiled for an H200).
"""

from collections.abc import Sequence
from typing import Any

from deeppcr.programs.cut_first import apply
from deeppcr.programs.terms import is_real_product, term_by_term
from depth.counts import contracted, matrices
from depth.jaxprs import rewritten

LONGEST = 16  # terms


def short_vectors(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of a closed program, with such products written out."""
    return apply(closed, operands, _written_out)


def _written_out(equation: Any, operands: list[Any]) -> list[Any] | None:
    if _is_of_vectors(equation):
        return [term_by_term(equation, *operands)]
    return rewritten(equation, operands, short_vectors, _is_of_vectors)


def _is_of_vectors(equation: Any) -> bool:
    """Whether an equation is a product of vectors, or of vectors and matrices of their own."""
    if not is_real_product(equation):
        return False
    axes, batch = equation.params["dimension_numbers"]
    _, rows, columns = matrices(equation)
    is_one_axis = len(axes[0]) == 1 and 0 < contracted(equation) <= LONGEST
    return is_one_axis and bool(batch[0]) and min(rows, columns) == 1
