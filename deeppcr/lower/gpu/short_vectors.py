"""Products of short vectors, for all steps at once on a GPU, written out as sums.

XLA makes sums of these products, too, but it transposes the vectors by a kernel of its own. Written
out, the product is part of the kernel that follows (jax 0.10.2, compiled for an H200).
"""

from collections.abc import Sequence
from typing import Any

from deeppcr.lower.products import ON_GPU, Sizes, as_sum, is_real_product, is_small
from deeppcr.programs.cut_first import apply, replacing


def short_vectors(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of a closed program, with such products written out."""
    return apply(closed, operands, replacing(_is_of_vectors, as_sum))


def _is_of_vectors(equation: Any) -> bool:
    """Whether an equation is a product of vectors, or of vectors and matrices of their own."""
    if not is_real_product(equation):
        return False
    axes, batch = equation.params["dimension_numbers"]
    sizes = Sizes.of(equation)
    has_vectors = len(axes[0]) == 1 and bool(batch[0]) and min(sizes.rows, sizes.columns) == 1
    return has_vectors and is_small(sizes, ON_GPU)
