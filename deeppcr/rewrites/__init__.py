"""Equivalent programs, for those that a compiler translates to slow code.

Each module states what the compiler does, the gain, and the version of jax. Values are equal up to
rounding.
"""

from deeppcr.rewrites.columns import columns
from deeppcr.rewrites.cut_first import evaluate
from deeppcr.rewrites.pieces import join, split, stack

__all__ = [
    "columns",
    "evaluate",
    "join",
    "split",
    "stack",
]
