"""What a GPU runs: XLA's loop, and all steps at once, with what its compiler for GPUs needs.

What it needs of an unrolled loop, its derivatives need, too: see `written_apart` in
`deeppcr.lower.steps`.
"""

from functools import partial

from deeppcr.lower.gpu.short_vectors import short_vectors
from deeppcr.lower.steps import Loop, lowered_by, steps_p
from deeppcr.lower.variants import GPUS

for name in GPUS:
    steps_p.register(name, partial(lowered_by, short_vectors, Loop.as_written))
