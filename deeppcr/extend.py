"""What it takes to build on chains: for packages of others, and for the rooms of this one.

The functions that run chains are in `deeppcr` itself. Here is what a new recipe needs beside them:
checks whose messages name the argument, options by name, the type of what one step reads, and
programs: their constants as operands, what tells two of them apart, and their side effects.
`deeppcr.diffusion`, `deeppcr.nn`, `deeppcr.layers` with `deeppcr.forward`, `deeppcr.triangular` and
the recipes are made of these and of the public names, and of nothing else.

Example:
    >>> from deeppcr.extend import check_count, find_method
    >>> def repeated(f, z, length, method="auto"):
    ...     check_count("length", length, "number of steps")
    ...     step = lambda z, _: (f(z), None)
    ...     return deeppcr.scan(step, z, None, length, method=find_method(method))[0]
    >>> repeated(lambda z: z / 2, jnp.float32(8), 3)
    Array(1., dtype=float32)
"""

from deeppcr.arrays import (
    abstract,
    check_batch,
    combine,
    floating,
    is_traced,
    like,
    of_step,
    partition,
    varying_axes,
)
from deeppcr.checks import (
    as_array,
    check_count,
    check_tolerance,
    check_type,
    describe,
    did_you_mean,
    folded,
    leaves_as_arrays,
    named_after,
    suggests_arguments,
    unknown_keyword,
)
from deeppcr.choose import AdjointOption, MethodOption, always_loops, find_adjoint, find_method
from deeppcr.linear import LinearSolver
from deeppcr.lower import is_eager, stack_rows
from deeppcr.programs.calls import with_operands
from deeppcr.programs.effects import side_effects
from deeppcr.programs.signature import signature
from deeppcr.solution import is_right

__all__ = [
    "AdjointOption",
    "LinearSolver",
    "MethodOption",
    "abstract",
    "always_loops",
    "as_array",
    "check_batch",
    "check_count",
    "check_tolerance",
    "check_type",
    "combine",
    "describe",
    "did_you_mean",
    "find_adjoint",
    "find_method",
    "floating",
    "folded",
    "is_eager",
    "is_right",
    "is_traced",
    "leaves_as_arrays",
    "like",
    "named_after",
    "of_step",
    "partition",
    "side_effects",
    "signature",
    "stack_rows",
    "suggests_arguments",
    "unknown_keyword",
    "varying_axes",
    "with_operands",
]
