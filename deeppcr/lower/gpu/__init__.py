"""What a GPU runs: XLA's loop, and all steps at once, with what its compiler for GPUs needs.

What it needs of an unrolled loop, its derivatives need, too: see `written_apart`, which is applied
where the loop is traced.
"""

from functools import partial

from deeppcr.lower.gpu.short_vectors import short_vectors
from deeppcr.lower.in_order import Loop, lowered_by
from deeppcr.lower.primitive import steps_p
from deeppcr.lower.variants import GPUS

for name in GPUS:
    steps_p.register(name, partial(lowered_by, short_vectors, Loop.as_written))
