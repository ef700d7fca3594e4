"""Where the blocks ``A_l`` of the linear recurrence come from.

    "dense"            df/dz                                       DeepPCR, DEER
    BlockDiagonal(k)   blocks on the diagonal of df/dz             ParaRNN
    "diagonal"         the diagonal of df/dz                       quasi-DEER
    Scalar(c)          c_l I; "identity" is c = 1                  Picard iteration, ParaDiGMS
    "zero"             0                                           Jacobi iteration
    "auto"             the narrowest of the first three that is proven to be exact
    Surrogate(g)       any of them, of another function g
    Clipped(...)       any of them, with entries of limited size

A new linearisation is one file with a `Linearization`, as `scalar.py` is. `jacobian.py` has the
derivatives of all steps.
"""

from deeppcr.linearize.derived import Clipped, Surrogate, TracedSurrogate
from deeppcr.linearize.exact import (
    LINEARIZATIONS,
    LinearizationChoice,
    choose_linearization,
    exact_linearization,
    find_linearization,
    memory_budget,
)
from deeppcr.linearize.jacobian import derivative
from deeppcr.linearize.linearization import BlockDiagonal, Dense, Diagonal, Linearization, constant
from deeppcr.linearize.scalar import Scalar, Zero

__all__ = [
    "LINEARIZATIONS",
    "BlockDiagonal",
    "Clipped",
    "Dense",
    "Diagonal",
    "Linearization",
    "LinearizationChoice",
    "Scalar",
    "Surrogate",
    "TracedSurrogate",
    "Zero",
    "choose_linearization",
    "constant",
    "derivative",
    "exact_linearization",
    "find_linearization",
    "memory_budget",
]
