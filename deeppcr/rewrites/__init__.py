"""Programs written in another way, where a compiler makes slow code of the way they were written.

Each module says what the compiler does, what is gained, and with which jax. The values are the same
but for rounding.
"""

from deeppcr.rewrites.columns import columns
from deeppcr.rewrites.cut_first import evaluate
from deeppcr.rewrites.plain_sums import with_plain_sums
from deeppcr.rewrites.small_products import write_out

__all__ = ["columns", "evaluate", "with_plain_sums", "write_out"]
