"""What a GPU runs: XLA's loop, and all steps at once, with what its compiler for GPUs needs.

What it needs of an unrolled loop, its derivatives need, too: see `written_apart` in
`deeppcr.lower.steps`.
"""

from functools import partial
from typing import Any

from deeppcr.lower.gpu.short_vectors import short_vectors
from deeppcr.lower.steps import lowered_by, steps_p
from deeppcr.lower.variants import GPUS


def as_written(*_: Any) -> None:
    """A loop is left to XLA."""


for name in GPUS:
    steps_p.register(name, partial(lowered_by, short_vectors, as_written))
