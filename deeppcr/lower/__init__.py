"""What each kind of device runs: the one floor that knows compilers.

Above it, steps in order are `loop`, an equation whose program is one `jax.lax.scan`, and steps at
once are `each`. How they run is decided when jax lowers them, by the platform that it lowers for.

    in_order.py        `loop`, and what a rule reads and rewrites of it
    at_once.py         `each`
    chunks.py          steps whose arrays stay in a cache
    targets.py         the few facts of a device that programs above depend on
    variants.py        programs with variants for several platforms
    compiler.py        options for XLA, for users
    cpu/               an ordered list of rules
    gpu/               what XLA's compiler for GPUs needs; a loop as one kernel
"""

from deeppcr.lower import cpu, gpu  # registers them
from deeppcr.lower.at_once import each
from deeppcr.lower.chunks import even_chunk, scan_in_chunks, steps_in_cache
from deeppcr.lower.cpu.factors_first import bounded
from deeppcr.lower.cpu.one_function import is_left_to_xla
from deeppcr.lower.cpu.patches import as_products, own_filters
from deeppcr.lower.cpu.pieces import split, stack
from deeppcr.lower.gpu.fused import (
    CannotFuse,
    FusedSolve,
    FusedStep,
    SolvedBelow,
    expecting,
    fused_scan,
    fused_solve,
    is_for_gpus,
    kernels_run,
    obstacle,
)
from deeppcr.lower.in_order import loop
from deeppcr.lower.targets import target
from deeppcr.lower.variants import (
    DEFAULT,
    by_platform,
    compiled_for,
    differing,
    is_eager,
    platforms,
)

__all__ = [
    "DEFAULT",
    "CannotFuse",
    "FusedSolve",
    "FusedStep",
    "SolvedBelow",
    "as_products",
    "bounded",
    "by_platform",
    "compiled_for",
    "cpu",
    "differing",
    "each",
    "even_chunk",
    "expecting",
    "fused_scan",
    "fused_solve",
    "gpu",
    "is_eager",
    "is_for_gpus",
    "is_left_to_xla",
    "kernels_run",
    "loop",
    "obstacle",
    "own_filters",
    "platforms",
    "scan_in_chunks",
    "split",
    "stack",
    "steps_in_cache",
    "target",
]
