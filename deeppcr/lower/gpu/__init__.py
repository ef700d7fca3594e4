"""What a GPU runs: XLA's loop, and all steps at once, with what its compiler for GPUs needs."""

from functools import partial

from deeppcr.lower.at_once import each_p, rewritten_by
from deeppcr.lower.gpu.short_vectors import short_vectors
from deeppcr.lower.gpu.written_apart import written_apart
from deeppcr.lower.in_order import loop_p, lowered_by
from deeppcr.lower.platforms import GPUS

for name in GPUS:
    loop_p.register(name, partial(lowered_by, written_apart))
    each_p.register(name, partial(rewritten_by, short_vectors))
