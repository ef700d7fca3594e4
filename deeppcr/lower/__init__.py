"""What each kind of device runs: the one floor that knows compilers.

Above it, steps in order are `loop`, an equation whose program is one `jax.lax.scan`, and steps at
once are `each`. How they run is decided when jax lowers them, by the platform that it lowers for.

    steps.py           `loop`, `each`, the equation of both, and how rules read it
    loops.py           loops that end when their data says so, loops in chunks, and products,
                       rounds and carries of a linear recurrence
    products.py        which products are small, and how they are written as sums
    variants.py        programs with variants for several platforms; the facts of a device
    cpu/               an ordered list of rules
    gpu/               what XLA's compiler for GPUs needs; a loop as one kernel
"""

from deeppcr.lower import cpu, gpu  # registers them
from deeppcr.lower.cpu.factors_first import bounded
from deeppcr.lower.cpu.one_function import is_left_to_xla
from deeppcr.lower.cpu.pieces import stack_rows
from deeppcr.lower.cpu.products import as_products, own_filters
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
from deeppcr.lower.loops import (
    FEW_STEPS,
    HIGHEST,
    Opening,
    Use,
    ahead,
    computed_once,
    even_chunk,
    in_place,
    is_written_out,
    longest_in_order,
    matvec,
    once_unless,
    opening,
    pack,
    scan_in_chunks,
    spread,
    steps_held,
    steps_in_cache,
    steps_per_test,
    unless,
    unpack,
)
from deeppcr.lower.steps import each, loop
from deeppcr.lower.variants import (
    DEFAULT,
    by_platform,
    compiled_for,
    differing,
    for_each_platform,
    is_eager,
    kept,
    platforms,
    target,
)

__all__ = [
    "DEFAULT",
    "FEW_STEPS",
    "HIGHEST",
    "CannotFuse",
    "FusedSolve",
    "FusedStep",
    "Opening",
    "SolvedBelow",
    "Use",
    "ahead",
    "as_products",
    "bounded",
    "by_platform",
    "compiled_for",
    "computed_once",
    "cpu",
    "differing",
    "each",
    "even_chunk",
    "expecting",
    "for_each_platform",
    "fused_scan",
    "fused_solve",
    "gpu",
    "in_place",
    "is_eager",
    "is_for_gpus",
    "is_left_to_xla",
    "is_written_out",
    "kept",
    "kernels_run",
    "longest_in_order",
    "loop",
    "matvec",
    "obstacle",
    "once_unless",
    "opening",
    "own_filters",
    "pack",
    "platforms",
    "scan_in_chunks",
    "spread",
    "stack_rows",
    "steps_held",
    "steps_in_cache",
    "steps_per_test",
    "target",
    "unless",
    "unpack",
]
