"""Equivalent programs, for those that a compiler translates to slow code.

Each module states what the compiler does, the gain, and the version of jax. Values are equal up to
rounding.
"""

from deeppcr.rewrites.columns import columns
from deeppcr.rewrites.cut_first import evaluate
from deeppcr.rewrites.gradients import plain_gradients
from deeppcr.rewrites.patches import as_products, own_filters
from deeppcr.rewrites.pieces import join, split, stack
from deeppcr.rewrites.small_products import write_out

__all__ = [
    "as_products",
    "columns",
    "evaluate",
    "join",
    "own_filters",
    "plain_gradients",
    "split",
    "stack",
    "write_out",
]
