"""What a GPU runs: XLA's loop, and all steps at once, with what its compiler for GPUs needs.

What it needs of an unrolled loop, its derivatives need, too: see `written_apart`, which is applied
where the loop is traced.
"""

from functools import partial

from deeppcr.lower.at_once import each_p, rewritten_by
from deeppcr.lower.gpu.short_vectors import short_vectors
from deeppcr.lower.variants import GPUS

for name in GPUS:
    each_p.register(name, partial(rewritten_by, short_vectors))
